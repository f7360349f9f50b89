"""vllm.entrypoints.launchers.grpc_server: the gRPC server awaits the ordered stop.

vLLM's way out of a signal: health turns to NOT_SERVING, the server refuses new calls
and cancels after 5 s those that are left, whatever ``--shutdown-timeout`` says, and
then the engine is stopped, on the loop. Ours stands where vLLM stops the server, and
stops the engine first: calls in flight run on, or end with a status that says why and
can be retried, and new ones get the same status from the engine's own door.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import report_file
from ..core.mode import Mode
from ..core.stop import Stop
from ..core.trigger import Trigger
from ..process_exit import leaves_fast
from ..program import is_the_whole_program
from ..starting import start
from ..telling.notify import tell_manager
from ..tree.child import SIGNALS
from . import async_llm_run
from .http_server import HTTP_SECONDS

logger = logging.getLogger("vllm.ashutdown")

_engines: list[Any] = []
"""The engine for which the next server is made: vLLM makes one behind the other."""


def make_vllm_engine_servicer(original: Callable[..., Any]) -> Callable[..., Any]:
    """``VllmEngineServicer``, which is given the engine."""

    @functools.wraps(original, updated=())
    def vllm_engine_servicer(engine: Any, *args: Any, **kwargs: Any) -> Any:
        servicer = original(engine, *args, **kwargs)
        _engines[:] = [engine]
        return servicer

    return vllm_engine_servicer


def make_grpc(original: ModuleType) -> ModuleType:
    """``grpc``, as the launcher has imported it."""
    return _Module(original, aio=_Module(original.aio, server=_server(original.aio)))


class _Module(ModuleType):
    """Another module but for some names."""

    def __init__(self, original: ModuleType, **own: Any) -> None:
        super().__init__(original.__name__)
        self.__dict__.update(own, _original=original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_original"], name)


def _server(aio: Any) -> Callable[..., Any]:
    def server(*args: Any, **kwargs: Any) -> Any:
        made = aio.server(*args, **kwargs)
        engine = _engines.pop() if _engines else None
        if hasattr(engine, "ashutdown"):
            made.stop = functools.partial(_stop, engine, made.stop)
        return made

    return server


async def _stop(engine: Any, stop_server: Callable[..., Any], grace: Any) -> None:
    """Stops the engine in order, and the server as soon as no call needs the engine.

    Args:
        engine: vLLM's ``AsyncLLM``.
        stop_server: The server's own ``stop``.
        grace: What vLLM gives calls in flight. They get the stop's own budget.
    """
    loop = asyncio.get_running_loop()
    start.over()
    stop = async_llm_run.start(engine, trigger=Trigger.call("the gRPC server's stop"))
    if is_the_whole_program():
        tell_manager(stop)
    _raise_by_signals(loop, stop, stop_server)
    await stop.quiet()
    left = min(HTTP_SECONDS, stop.budget.remaining())
    # Nothing that a call still has to write needs the core.
    closing = loop.create_task(stop_server(left))
    report = await stop.join()
    await closing
    logger.info("[shutdown] complete in %.3fs: %s", report.seconds, report.summary)
    report_file.write(report)
    _ignore_signals(loop)


def _raise_by_signals(
    loop: asyncio.AbstractEventLoop, stop: Stop, stop_server: Callable[..., Any]
) -> None:
    """The next signal means abort, and the one after it kill."""
    signals: list[signal.Signals] = []
    closing: list[asyncio.Task[None]] = []  # a loop holds its tasks only weakly

    def on_signal(number: signal.Signals) -> None:
        signals.append(number)
        mode = Mode.ABORT if len(signals) == 1 else Mode.KILL
        stop.raise_to(mode, Trigger.signal(number))
        if mode is Mode.KILL:
            # Nobody waits any more for clients that do not read.
            closing.append(loop.create_task(stop_server(None)))

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal, number)


def _ignore_signals(loop: asyncio.AbstractEventLoop) -> None:
    """Makes signals that come now harmless, in a process that is about to leave."""
    if leaves_fast():
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
