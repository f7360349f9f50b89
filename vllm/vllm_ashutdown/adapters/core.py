"""vllm.v1.engine.core: an engine core process stops when it is told, and in time.

The function here is the target of the process: under spawn the child finds it by
name, and with it this package, before anything else of vLLM runs there.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import register
from ..exit_code import ExitCode
from ..process_exit import run_and_leave, stop_collecting
from ..seams import installer
from ..tree import child
from ..tree.entry import Entry
from ..tree.signals import Signals

logger = logging.getLogger("vllm.ashutdown")

SEAM = "EngineCoreProc.run_engine_core"
_DEADLINE = "_ashutdown_drain_deadline"


def make_run_engine_core(original: Callable[..., None]) -> Callable[..., None]:
    """``EngineCoreProc.run_engine_core``."""
    return Entry(run_engine_core, original)


def run_engine_core(*args: Any, **kwargs: Any) -> None:
    """Runs vLLM's own core, then leaves by the fast exit."""
    register()
    from vllm.v1.engine.core import EngineCoreProc

    own = installer.original_or(SEAM, EngineCoreProc.run_engine_core)
    run_and_leave(own, *args, **kwargs)


def make_handle_shutdown(original: Callable[..., bool]) -> Callable[..., bool]:
    """``EngineCoreProc._handle_shutdown``, which the busy loop asks in each turn."""

    @functools.wraps(original)
    def handle_shutdown(self: Any) -> bool:
        _Start.is_over = True
        states = type(self.shutdown_state)
        if self.shutdown_state is states.RUNNING:
            return original(self)
        deadline = vars(self).get(_DEADLINE)
        if deadline is None:
            deadline = vars(self)[_DEADLINE] = _drain_deadline(self)
        if self.vllm_config.shutdown_timeout and time.monotonic() >= deadline:
            # Asked anew, without any drain time, vLLM ends what is left.
            self.vllm_config.shutdown_timeout = 0
            self.shutdown_state = states.REQUESTED
        return original(self)

    return handle_shutdown


def _drain_deadline(core: Any) -> float:
    """When nothing may run any more, on ``time.monotonic``.

    By the word of the parent, which has its own plan; without one, by this core's
    own clock. vLLM has no clock here: a request that never ends holds it for ever.
    """
    tie = child.current()
    if tie is not None and tie.allowance is not None:
        return tie.allowance.drain_deadline
    return time.monotonic() + float(core.vllm_config.shutdown_timeout)


def make_shutdown(original: Callable[..., None]) -> Callable[..., None]:
    """``EngineCoreProc.shutdown``: the last thing that a core process does."""

    @functools.wraps(original)
    def shutdown(self: Any) -> None:
        stop_collecting()
        # The scheduler's is where connectors say goodbye to the outside.
        scheduler = getattr(self, "scheduler", None)
        if scheduler is not None:
            scheduler.shutdown = _once(scheduler.shutdown)
        try:
            original(self)
        finally:
            if scheduler is not None:
                scheduler.shutdown()

    return shutdown


def _once(call: Callable[[], None]) -> Callable[[], None]:
    """``call``, but the second time and later it does nothing."""
    calls = [call]

    def once() -> None:
        if calls:
            calls.pop()()

    return once


class _Start:
    """Of this process's core: over with its busy loop, or when it has failed."""

    is_over = False


def make_signal(original: ModuleType) -> ModuleType:
    """``signal``, as vLLM's module has imported it."""
    return _CoreSignals()


class _CoreSignals(Signals):
    """As in any child; and what vLLM only notes in a start ends the start."""

    @staticmethod
    def signal(number: int, handler: Any) -> Any:
        if callable(handler):
            return Signals.signal(number, ends_the_start(handler))
        # It gives signals their default back: it is on its way out.
        _Start.is_over = True
        return Signals.signal(number, handler)


def ends_the_start(handler: Callable[[int, Any], None]) -> Callable[[int, Any], None]:
    """``handler``, which leaves at once where no busy loop sees to it yet."""

    @functools.wraps(handler)
    def handle(number: int, frame: Any) -> None:
        handler(number, frame)
        if not _Start.is_over:
            raise SystemExit(ExitCode.STOPPED)

    return handle
