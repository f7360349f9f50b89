"""The launcher of several API servers while it has nothing to do but to wait.

Only that process imports this, when it begins to wait: ``vllm.v1.utils`` is in every
process of vLLM's.
"""

from __future__ import annotations

import functools
import logging
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from .. import report_file, settings
from ..core.budget import DEATH_SECONDS
from ..core.files import ledger
from ..core.mode import Mode
from ..core.trigger import Trigger, TriggerKind
from ..exit_code import ExitCode
from ..process_exit import leaves_fast
from ..program import is_the_whole_program
from ..starting import start
from ..telling.notify import tell_manager
from ..telling.title import Title
from ..tree import child
from ..tree.draining import DrainRelay
from ..tree.interrupt import Interrupt
from ..tree.member import Member
from ..tree.place import home
from ..tree.stopping import Tree, TreeStop
from ..watchdog import Watchdog
from . import core_client

logger = logging.getLogger("vllm.ashutdown")


def serve(
    watch: Callable[[], None],
    api_server_manager: Any,
    engine_manager: Any,
    coordinator: Any,
) -> None:
    """Runs ``watch`` until someone asks for a stop, and then stops the whole tree.

    Args:
        watch: vLLM's own wait.
        api_server_manager: vLLM's, whose processes have a home here.
        engine_manager: vLLM's, or ``None`` where the cores are elsewhere.
        coordinator: vLLM's, or ``None``.

    Raises:
        SystemExit: with a code, if nobody had asked for it.
    """
    cores = list(getattr(engine_manager, "processes", None) or ())
    tree = Tree(
        servers=list(api_server_manager.processes),
        cores=cores,
        others=[] if coordinator is None else [coordinator.proc],
        release=functools.partial(_release, api_server_manager),
        made=lambda: {path: kind for kind, path in ledger.owned()},
    )
    args = getattr(api_server_manager, "args", None)
    drain = float(getattr(args, "shutdown_timeout", 0) or 0)
    _Launcher(tree, engine_manager, drain).serve(watch)


def _release(api_server_manager: Any) -> None:
    sock = getattr(api_server_manager, "sock", None)
    if sock is not None:
        sock.close()  # the servers' listening socket, as long as anyone holds it
    ledger.remove_all()


class _Asked(BaseException):
    """Someone has asked for a stop: leaves the wait in vLLM, whatever it catches."""


class _Launcher:
    """The top process while it has nothing to do but to wait."""

    def __init__(self, tree: Tree, engine_manager: Any, drain: float) -> None:
        self._tree = tree
        self._manager = engine_manager
        self._drain = drain
        self._trigger: Trigger | None = None
        self._stop: TreeStop | None = None
        self._waiting = True
        self._interrupt = Interrupt()
        self._own_signals = 0
        self._last: int = signal.SIGTERM

    def serve(self, watch: Callable[[], None]) -> None:
        """Returns when the tree is stopped.

        Raises:
            SystemExit: with a code, if nobody had asked for it.
        """
        here, title = home(), Title()
        assert here is not None
        try:
            self._interrupt.prepare()
            for number in child.SIGNALS:
                signal.signal(number, self._on_signal)
            DrainRelay(here, self._tree.servers)
            for process in self._tree.processes:
                here.record(process.pid).decide = self._decide
            self._trigger = start.over() or self._trigger
            try:
                if self._trigger is None:
                    watch()
            except Exception as error:  # vLLM has logged it: a process has died
                self._trigger = self._trigger or Trigger.death(str(error))
            self._waiting = False
        except _Asked:
            pass
        trigger = self._trigger
        if trigger is None:
            return  # all have left by themselves
        died = trigger.kind is TriggerKind.DEATH
        drain = 0.0 if died else self._drain
        teardown = settings.teardown_seconds()
        if self._manager is not None:
            core_client.take_over(self._manager)
        self._stop = TreeStop(
            self._tree,
            Mode.for_drain(drain),
            drain,
            min(teardown, DEATH_SECONDS) if died else teardown,
            trigger,
        )
        if is_the_whole_program():
            self._stop.stop.observed_by(title)
            tell_manager(self._stop.stop)
        Watchdog(self._stop.stop, lambda: self._tree.processes).arm()
        self._escalate()
        report = self._stop.run()
        self._stop.stop.conclude(report)
        logger.info("[shutdown] complete in %.3fs: %s", report.seconds, report.summary)
        report_file.write(report)
        if leaves_fast():
            for number in child.SIGNALS:
                signal.signal(number, signal.SIG_IGN)
        if died:
            raise SystemExit(ExitCode.ENGINE_DIED)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._interrupt.take() is None:  # not our own, to leave the wait
            self._own_signals += 1
            self._last = number
            if self._trigger is None:
                self._trigger = Trigger.signal(number)
                name = signal.Signals(number).name
                logger.info("[shutdown] %s received", name)
        if self._waiting:
            self._waiting = False
            raise _Asked
        self._escalate()

    def _escalate(self) -> None:
        """The second signal to this process means abort, the third kill."""
        if self._stop is None or self._own_signals < 2:
            return
        mode = Mode.ABORT if self._own_signals == 2 else Mode.KILL
        self._stop.raise_to(mode, Trigger.signal(self._last))

    def _decide(self, member: Member, number: int) -> bool:
        """On the thread that listens: a child was signalled, and asks what it means."""
        if self._trigger is None and self._waiting:
            self._trigger = Trigger.signal(number, str(member))
            told_by(member, number)
            self._interrupt.send(signal.SIGTERM)
        return True


def told_by(member: Member, number: int) -> None:
    """Says which process was signalled."""
    logger.info(
        "[shutdown] %s received %s: the whole server stops",
        member,
        signal.Signals(number).name,
    )
