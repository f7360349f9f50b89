"""The HTTP server of vLLM awaits the ordered stop.

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
from typing import Any

from msgspec import Struct

from .. import report_file, settings
from ..core.budget import DEATH_SECONDS
from ..core.files import Kind, ledger
from ..core.mode import Mode
from ..core.phase import Outcome, Phase, PhaseRecord
from ..core.report import ShutdownReport
from ..core.stop import Stop
from ..core.trigger import Trigger, TriggerKind
from ..exit_code import ExitCode
from ..http.gate import Gate
from ..http.middleware import ShutdownMiddleware
from ..http.quiet import quieted
from ..process_exit import leaves_fast
from ..program import is_the_whole_program
from ..starting import start
from ..telling.notify import tell_manager
from ..telling.title import Title
from ..tree import child
from ..tree.child import SIGNALS
from ..tree.member import Member
from ..tree.message import Message
from ..tree.place import home
from ..watchdog import SignalWatch, Watchdog
from . import async_llm_run, core_client
from .engine_state import announced, state_of
from .launcher_drain import steered
from .observers import traces

logger = logging.getLogger("vllm.ashutdown")

SPANS_SECONDS = 1.0
"""The most for a receiver of spans to take the last ones, out of what is left."""

HTTP_SECONDS = 3.0
"""The most that clients get to read their last bytes, out of what is left."""


class _Wish(Struct, frozen=True):
    """What the first to ask wanted.

    Attributes:
        trigger: Who it was.
        drain: Seconds to drain; ``None`` for the engine's own.
        teardown: Seconds for the rest; ``None`` for the setting's.
    """

    trigger: Trigger
    drain: float | None = None
    teardown: float | None = None


class HttpServer:
    """One HTTP server from its first request to its last."""

    def __init__(self, app: Any, engine: Any) -> None:
        self.app = app
        self.engine = engine
        self.state = state_of(engine)
        self.gate = Gate(self.state.tally, settings.retry_after_seconds())
        self.preparation = steered(app, engine, self.gate)
        # Innermost, as Router(middleware=...) does it. The application's own
        # stack may be built by now, and around the router is where we belong.
        router = app.router
        router.middleware_stack = ShutdownMiddleware(router.middleware_stack, self.gate)
        self._title = Title() if _is_a_server() else None
        self._server: Any = None
        self._loop = asyncio.get_running_loop()
        self._signals = 0
        self._mode: tuple[Mode, Trigger] | None = None
        self._wish: _Wish | None = None
        self._signal_watch = SignalWatch(async_llm_run.longest(engine), self._processes)
        self._wished = asyncio.Event()

    async def serve(self, serving: Any) -> Awaitable[None]:
        """Serves until it is asked to stop, its engine dies, or it ends by itself.

        Args:
            serving: vLLM's ``serve_http``, called but not begun.

        Returns:
            What is left to await once the engine's own context is left.
        """
        task = self._loop.create_task(serving)
        # vLLM's makes the server and sets its signal handlers before it first
        # lets go of the loop; then ours take their place. A signal in between
        # takes vLLM's way, which ends in the same one stop.
        await asyncio.sleep(0)
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self._on_signal, number)
        if child.current() is None:  # else the launcher has the clock
            self._signal_watch.begin()
        self._listen()
        interrupted = start.over()
        if interrupted is not None:  # in the last moment before this one
            self._signals = start.signals
            self._ask(_Wish(interrupted))
        wished = self._loop.create_task(self._wished.wait())
        with announced(self.engine, self.preparation.overtake), quieted():
            try:
                await asyncio.wait({task, wished}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                # Nobody signalled, someone cancelled: vLLM's way, whole.
                task.cancel()
            finally:
                wished.cancel()
            if self._wish is None or task.done():
                return await self._left_by_itself(task)
            wish = self._wish
            self.state.served = True
            stop = async_llm_run.start(
                self.engine, wish.drain, trigger=wish.trigger, teardown=wish.teardown
            )
            Watchdog(stop, self._processes).arm()
            self._signal_watch.answered()
            self._observe(stop)
            run = self._loop.create_task(stop.join())
            self._raise()  # by what came in the same turn of the loop
            try:
                await stop.quiet()
            except asyncio.CancelledError:
                stop.raise_to(Mode.ABORT, Trigger.call("a cancelled server"))
            self.preparation.settle()
            tie = child.current()
            if tie is not None:
                tie.tell_past_the_core()
            # The way vLLM's own signal handler goes: it answers a cancellation
            # with the coroutine that closes HTTP.
            task.cancel()
            closed = self._loop.create_task(self._close(stop, await task))
            report = await run
        return self._complete(stop, report, closed)

    async def _left_by_itself(self, task: asyncio.Task[Any]) -> Awaitable[None]:
        closing: Awaitable[None] = await task
        if not getattr(self.engine, "errored", False):
            return closing
        # vLLM's own watch has found the engine dead first, and closes HTTP.
        return _died(closing)

    # -- who may ask -----------------------------------------------------------

    def _listen(self) -> None:
        """Hears of signals to other processes, of deaths, and from the launcher."""
        tie, here = child.current(), home()
        if tie is not None:
            tie.on_stop(lambda message: self._soon(self._told, message))
        client = getattr(self.engine, "engine_core", None)
        for process in core_client.began(client):
            if here is not None:
                record = here.record(process.pid)
                record.decide = self._decide
                died = functools.partial(
                    self._soon, self._died, f"{process.name} (pid {process.pid})"
                )
                record.on_gone = died
                if record.gone.is_set():  # before anyone was there to hear of it
                    died()
        handler = getattr(self.engine, "output_handler", None)
        if handler is not None:
            handler.add_done_callback(self._handler_over)

    def _soon(self, call: Callable[..., None], *args: Any) -> None:
        """Calls on the loop, from any thread."""
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            logger.debug("[shutdown] too late: %s%s", call.__name__, args)

    def _on_signal(self, number: signal.Signals) -> None:
        tie = child.current()
        if tie is not None:
            tie.report(number)  # the launcher decides, for all of its servers
            return
        self._signals += 1
        trigger = Trigger.signal(number)
        if self._wish is None:
            logger.info("[shutdown] %s received", number.name)
            self._ask(_Wish(trigger))
        if self._signals > 1:
            # Counted here and nowhere else: one signal to the whole group is one.
            self._mode = (Mode.ABORT if self._signals == 2 else Mode.KILL, trigger)
            self._raise()

    def _decide(self, member: Member, number: int) -> bool:
        self._soon(self._reported, member, number)
        return True

    def _reported(self, member: Member, number: int) -> None:
        if self._wish is None:
            name = signal.Signals(number).name
            logger.info("[shutdown] %s received %s: the server stops", member, name)
            self._ask(_Wish(Trigger.signal(number, str(member))))

    def _told(self, message: Message) -> None:
        trigger = Trigger.parse(message["trigger"])
        mode, drain = Mode.parse(message["mode"]), float(message["drain"])
        if self._wish is None:
            self._ask(_Wish(trigger, drain, float(message["seconds"]) - drain))
        elif mode is not Mode.DRAIN:
            self._mode = (mode, trigger)
            self._raise()

    def _handler_over(self, handler: asyncio.Task[Any]) -> None:
        if not handler.cancelled():
            self._died("the engine")

    def _died(self, who: str) -> None:
        if self._wish is None and self.state.stop is None:
            logger.error("[shutdown] %s died, and nobody had asked for that", who)
            self._ask(_Wish(Trigger.death(who), 0.0, DEATH_SECONDS))

    def _ask(self, wish: _Wish) -> None:
        self._wish = wish
        self.preparation.overtake()  # before anything else gets a turn of the loop
        self._wished.set()

    # -- stopping --------------------------------------------------------------

    def _observe(self, stop: Stop) -> None:
        if self._title is not None:
            stop.observed_by(self._title)
        if is_the_whole_program() and child.current() is None:
            tell_manager(stop)

    def _processes(self) -> list[Any]:
        return core_client.began(getattr(self.engine, "engine_core", None))

    @property
    def _uvicorn(self) -> Any:
        """The server that vLLM's ``serve_http`` makes, once it has."""
        state = getattr(self.app, "state", None)  # goes with the lifespan
        return getattr(state, "server", None) or self._server

    def _raise(self) -> None:
        """The second signal means abort, the third kill."""
        stop = self.state.stop
        if stop is None or self._mode is None:
            return
        mode, trigger = self._mode
        stop.raise_to(mode, trigger)
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
        stop.conclude(whole)
        logger.info("[shutdown] complete in %.3fs: %s", whole.seconds, whole.summary)
        tie = child.current()
        if tie is None:
            # Nobody listens there any more.
            sockets = [
                path for kind, path in ledger.owned() if kind == Kind.SOCKET_FILE
            ]
            ledger.remove(sockets)
            report_file.write(whole)
        else:
            tie.send({"is": "report", "report": whole.to_json()})
        if traces(self.engine):
            from ..telling.spans import flushed

            await flushed(min(SPANS_SECONDS, stop.budget.remaining()))
        if leaves_fast():
            # It is over but for the exit itself. The loop would give signals
            # their default back as it closes, and one that comes in these last
            # moments would turn a clean exit into a death by signal.
            for number in SIGNALS:
                self._loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)
        if whole.trigger.kind is TriggerKind.DEATH:
            _leave_with(ExitCode.ENGINE_DIED)


async def _died(closing: Awaitable[None]) -> None:
    await closing
    _leave_with(ExitCode.ENGINE_DIED)


def _leave_with(code: ExitCode) -> None:
    """Ends the process with ``code``, if all it does is to serve.

    A program that has something to do afterwards sees the engine's own errors.
    """
    if _is_a_server():
        raise SystemExit(code)


def _is_a_server() -> bool:
    """Whether serving is all that this process does."""
    return is_the_whole_program() or child.current() is not None
