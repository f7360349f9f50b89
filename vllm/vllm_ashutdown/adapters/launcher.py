"""vllm.entrypoints.launchers.launcher: the HTTP server awaits the ordered stop.

vLLM's ``serve_http`` runs inside ours: it makes the server and answers for its
options, its certificates and its watchdog. Ours takes over the signals and, when
one comes, awaits ``ashutdown()`` and then lets vLLM's own way out close HTTP.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from .. import settings
from ..core.mode import Mode
from ..core.phase import Outcome, Phase, PhaseRecord
from ..core.report import ShutdownReport
from ..core.stop import Stop
from ..core.trigger import Trigger
from ..http.gate import Gate
from ..http.middleware import ShutdownMiddleware
from ..http.quiet import quieted
from ..process_exit import leaves_fast
from . import async_llm

logger = logging.getLogger("vllm.ashutdown")

HTTP_SECONDS = 3.0
"""The most that clients get to read their last bytes, out of what is left."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""They mean the same."""


def make_serve_http(original: Callable[..., Any]) -> Callable[..., Any]:
    """``serve_http``."""

    @functools.wraps(original)
    async def serve_http(app: Any, *args: Any, **kwargs: Any) -> Any:
        engine = getattr(app.state, "engine_client", None)
        if not hasattr(engine, "ashutdown"):  # a render server, say
            return await original(app, *args, **kwargs)
        server = _Server(app, engine)
        return await server.serve(original(app, *args, **kwargs))

    return serve_http


def make_find_process_using_port(original: Callable[..., Any]) -> Callable[..., Any]:
    """``find_process_using_port``, which vLLM's way out calls on the loop.

    It looks through the open connections of every process of the machine, to
    warn of another user of the port. The only one there can be at that moment
    is this server, which has not closed it yet.
    """

    @functools.wraps(original)
    def find_process_using_port(port: int) -> Any:
        return None

    return find_process_using_port


class _Server:
    """One HTTP server from its first request to its last."""

    def __init__(self, app: Any, engine: Any) -> None:
        self.app = app
        self.engine = engine
        self.state = async_llm.state_of(engine)
        self.gate = Gate(self.state.tally, settings.retry_after_seconds())
        # Innermost, as Router(middleware=...) does it. The application's own
        # stack may be built by now, and around the router is where we belong.
        router = app.router
        router.middleware_stack = ShutdownMiddleware(router.middleware_stack, self.gate)
        self._server: Any = None
        self.signals: list[signal.Signals] = []
        self.signalled = asyncio.Event()

    async def serve(self, serving: Any) -> Awaitable[None]:
        """Serves until a signal comes or the server ends by itself.

        Args:
            serving: vLLM's ``serve_http``, called but not begun.

        Returns:
            What is left to await once the engine's own context is left.
        """
        loop = asyncio.get_running_loop()
        task = loop.create_task(serving)
        # vLLM's makes the server and sets its signal handlers before it first
        # lets go of the loop; then ours take their place. A signal in between
        # takes vLLM's way, which ends in the same one stop.
        await asyncio.sleep(0)
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        signalled = loop.create_task(self.signalled.wait())
        with async_llm.announced(self.engine, self.gate.close), quieted():
            try:
                await asyncio.wait(
                    {task, signalled}, return_when=asyncio.FIRST_COMPLETED
                )
            except asyncio.CancelledError:
                # Nobody signalled, someone cancelled: vLLM's way, whole.
                task.cancel()
            finally:
                signalled.cancel()
            if not self.signals or task.done():
                closing: Awaitable[None] = await task
                return closing
            stop = async_llm.start(self.engine, trigger=Trigger.signal(self.signals[0]))
            run = loop.create_task(stop.join())
            self._raise()  # by signals that came in the same turn of the loop
            try:
                await stop.quiet()
            except asyncio.CancelledError:
                stop.raise_to(Mode.ABORT, Trigger.call("a cancelled server"))
            # The way vLLM's own signal handler goes: it answers a cancellation
            # with the coroutine that closes HTTP.
            task.cancel()
            closed = loop.create_task(self._close(stop, await task))
            report = await run
        return self._complete(stop, report, closed)

    @property
    def _uvicorn(self) -> Any:
        """The server that vLLM's ``serve_http`` makes, once it has."""
        state = getattr(self.app, "state", None)  # goes with the lifespan
        return getattr(state, "server", None) or self._server

    def _on_signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        self.gate.close()  # before anything else gets a turn of the loop
        if len(self.signals) == 1:
            logger.info("[shutdown] %s received", number.name)
            self.signalled.set()
        else:
            self._raise()

    def _raise(self) -> None:
        """The second signal means abort, the third kill."""
        stop, count = self.state.stop, len(self.signals)
        if stop is None or count < 2:
            return
        mode = Mode.ABORT if count == 2 else Mode.KILL
        stop.raise_to(mode, Trigger.signal(self.signals[-1]))
        if mode is Mode.KILL:
            # Nobody waits any more for clients that do not read.
            state = getattr(self._uvicorn, "server_state", None)
            for connection in list(getattr(state, "connections", ())):
                if connection.transport is not None:
                    connection.transport.abort()

    async def _close(self, stop: Stop, closing: Awaitable[None]) -> PhaseRecord:
        """Closes HTTP within what is left of the budget.

        Every answer is over by now, and nothing here needs the core: so it
        closes while the core stops. What uvicorn could still wait for is a
        client that does not read its last bytes.
        """
        began = stop.budget.clock()
        left = min(HTTP_SECONDS, stop.budget.remaining())
        self._server = self._uvicorn
        if self._server is not None:
            self._server.config.timeout_graceful_shutdown = left
        await closing
        return PhaseRecord(
            Phase.HTTP,
            left,
            stop.budget.clock() - began,
            Outcome.DONE,
            began=began - stop.budget.armed_at,
        )

    async def _complete(
        self, stop: Stop, report: ShutdownReport, closed: asyncio.Task[PhaseRecord]
    ) -> None:
        whole = report.with_http(
            await closed, stop.budget.elapsed(), refused=self.gate.refused
        )
        logger.info("[shutdown] complete in %.3fs: %s", whole.seconds, whole.summary)
        _write(whole)
        if leaves_fast():
            # It is over but for the exit itself. The loop would give signals
            # their default back as it closes, and one that comes in these last
            # moments would turn a clean exit into a death by signal.
            for number in SIGNALS:
                asyncio.get_running_loop().remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)


def _write(report: ShutdownReport) -> None:
    path = settings.report_path()
    if not path:
        return
    try:
        Path(path).write_text(report.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        logger.warning("[shutdown] no report written: %s", error)
