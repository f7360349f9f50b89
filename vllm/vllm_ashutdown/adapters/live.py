"""The engines that are open in this process, of either class.

The interpreter's exit closes them, before modules are taken apart, and an actor of
Ray's does when it says that it leaves. A forked child, which has inherited the objects
and nothing that they stand for, leaves them alone: torn down there, they would take the
parent's processes with them.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ..actor import before_leaving
from ..core.trigger import Trigger
from ..tree.member import Member
from ..tree.place import home
from . import core_client
from .closed import part_of
from .engine_state import state_of

logger = logging.getLogger("vllm.ashutdown")


class LiveEngines:
    """Those of one process. It does not keep them alive."""

    def __init__(self) -> None:
        self._close: weakref.WeakKeyDictionary[Any, Callable[[Any], object]] = (
            weakref.WeakKeyDictionary()
        )
        self._watching = False

    def watch(self) -> None:
        """Begins to close and to forsake what is open. Doing it twice is harmless."""
        if not self._watching:
            self._watching = True
            atexit.register(self._close_all)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=self._forsake_all)

    def add(self, engine: Any, close: Callable[[Any], object]) -> None:
        """Notes an engine that is open, and what closes it."""
        self._close[engine] = close
        before_leaving(self._close_idle)

    def discard(self, engine: Any) -> None:
        """Forgets one that is closed."""
        self._close.pop(engine, None)

    def _close_all(self) -> None:
        with contextlib.ExitStack() as stack:  # each, also if one is interrupted
            for engine, close in list(self._close.items()):
                stack.callback(close, engine)

    def _close_idle(self) -> None:
        """Closes each but those at work: other tasks of an actor run to their end.

        One that is between two calls cannot be seen, and finds its engine closed.
        """

        def close_if_idle(engine: Any, close: Callable[[Any], object]) -> None:
            if not _is_at_work(engine):
                close(engine)

        with contextlib.ExitStack() as stack:
            for engine, close in list(self._close.items()):
                stack.callback(close_if_idle, engine, close)

    def _forsake_all(self) -> None:
        for engine in list(self._close):
            _forsake(engine)
        self._close.clear()


def answer_for(engine: Any, stop: Callable[[Any, Trigger], None]) -> None:
    """Has an engine in a program say what a signal to one of its processes means.

    Ctrl-C goes to the whole group, and what it means is the program's to say. A SIGTERM
    to one process alone stops the engine that it belongs to, in order. While a server
    starts with the engine, either ends the start.

    Args:
        engine: It is not kept alive.
        stop: Begins that stop, and does not wait. It is called on the thread that
            listens to children.
    """
    there = weakref.ref(engine)

    def decide(member: Member, number: int) -> bool:
        from ..starting import start  # dear, and only a server has one

        if start.active:
            return start.decide(member, number)
        if number == signal.SIGINT:
            return True
        living = there()
        if living is None:
            return False
        logger.info("[shutdown] %s received SIGTERM: its engine stops", member)
        stop(living, Trigger.signal(number, str(member)))
        return True

    here = home()
    for process in core_client.processes(getattr(engine, "engine_core", None)):
        if here is not None:
            here.record(process.pid).decide = decide


def _is_at_work(engine: Any) -> bool:
    state = state_of(engine)
    processor = part_of(engine, "output_processor")
    requests = getattr(processor, "request_states", ())
    return bool(requests or state.inside or state.tally.in_flight)


def _forsake(engine: Any) -> None:
    """Makes ``engine`` a closed one, in a process that must not touch what it has."""
    from ..core.budget import Budget
    from ..core.mode import Mode
    from ..core.stop import Stop

    state = state_of(engine)
    stop = Stop(Mode.ABORT, Budget.arm(0.0, 0.0), Trigger.call("os.fork()"))
    stop.finish()
    state.stop, state.steps, state.task = stop, None, None
    # Another thread, which is not here, may have held them.
    state.lock, state.turn, state.door = (threading.RLock() for _ in range(3))
    state.files.clear()
    core_client.forsake(getattr(engine, "engine_core", None))


live = LiveEngines()
"""Those of this process."""
