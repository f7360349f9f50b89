"""The steps of a stop, as an ``AsyncLLM`` needs them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from typing import Any

from ..core.claims import claims
from ..core.files import ledger
from ..core.mode import Mode
from ..core.phase import Phase
from ..core.stop import Detail, Stop
from ..core.tally import WatchedMap
from ..core.thread import OnceInThread
from ..errors import ENDED
from ..inventory import Look, Owned, compare, leftovers, look
from ..tree.belongings import ROWS, made_by, owned_by, release_for
from ..tree.ending import ends_of
from . import core_client, output_processor
from .engine_state import EngineState
from .exceptions import refusal, shutdown_error

logger = logging.getLogger("vllm.ashutdown")

LOOK_SECONDS = 0.5
"""For the look at what there is before a stop: it is for the report alone."""


class AsyncLLMStop:
    """:class:`~vllm_ashutdown.core.order.Stoppable` for one ``AsyncLLM``.

    It lives as long as the stop runs, and it is all that holds the engine then.
    Every attribute of the engine may be missing: ``__init__`` may have failed.
    """

    def __init__(self, engine: Any, state: EngineState) -> None:
        self.engine = engine
        self.state = state
        self.client = getattr(engine, "engine_core", None)
        self.processor = getattr(engine, "output_processor", None)
        self.requests: WatchedMap | None = None
        self.completed: int | None = None
        self.made: dict[str, str] = {}
        self.struck: set[int] = set()
        self.before = OnceInThread("vllm-ashutdown-look", self._look_before)
        self.core = OnceInThread("vllm-ashutdown-core", self._stop_core)
        self.front = OnceInThread("vllm-ashutdown-release", self._release_front)
        self.context = OnceInThread("vllm-ashutdown-zmq", self._close_context)

    @property
    def stop(self) -> Stop:
        """The stop that this serves."""
        assert self.state.stop is not None
        return self.state.stop

    @property
    def handler(self) -> asyncio.Task[None] | None:
        """The output handler, if it was ever started."""
        return getattr(self.engine, "output_handler", None)

    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that the engine lives on, if it has met one."""
        if self.handler is not None:
            return self.handler.get_loop()
        return core_client.loop_of(self.client)

    def raised(self, mode: Mode) -> None:
        """What must happen at once when the stop is raised."""
        if mode is Mode.KILL and self.client is not None:
            core_client.kill(self.client, self.struck)

    # -- the steps, in the order ----------------------------------------------

    def announce(self) -> Detail:
        for announce in self.state.announce:
            announce()
        # Beside what waits for requests and for the handler: it reads all that
        # each process maps.
        self.before.start(LOOK_SECONDS)
        return f"{self.stop.trigger}, mode {self.stop.mode}"

    def close_admission(self) -> Detail:
        # add_request looks for the stop itself; here the counting begins.
        if self.processor is None:
            return None
        self.requests = output_processor.watch_requests(
            self.processor, self.state.tally
        )
        if self.handler is None and self.state.tally.in_flight and _in_a_loop():
            # A request on its way in is about to start it. Started here, it is
            # there to be watched: it ends when the core dies.
            self.engine._run_output_handler()
        return f"{len(self.requests)} requests in flight"

    async def drained(self) -> Detail:
        idle = asyncio.ensure_future(self.state.tally.idle())
        waits: set[asyncio.Future[Any]] = {idle}
        if self.handler is not None:
            # It ends when the core dies, and then nothing will ever finish.
            waits.add(self.handler)
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
        if self.handler is not None and self.handler.done():
            return "the core died"
        return None

    def end_requests(self) -> Generator[None, None, Detail]:
        handler = self.handler
        core_died = handler is not None and _failed(handler)
        if self.requests is not None and self.completed is None:
            # Now, and not when the step is entered again: from here on it is
            # the stop that takes them out.
            self.stop.requests.completed = self.completed = self.requests.gone
        loop = self.loop()
        if self.processor is None or (loop is not None and loop.is_closed()):
            return None  # no caller can be waiting
        output_processor.close_door(self.processor)
        # A request that is still on its way in would start a handler where there
        # was none, behind the back of the phase that ends it.
        self.engine._run_output_handler = _no_handler
        if core_died:
            output_processor.forget_requests(self.processor)
        else:
            output_processor.end_inputs(self.state.inputs)
            yield from output_processor.end_requests(
                self.processor,
                lambda ids: core_client.abort_in_core(self.client, ids),
                self._ended,
            )
        core_client.fail_utility_calls(self.client, shutdown_error(ENDED))
        done = self.stop.requests
        return f"{done.completed} requests completed, {done.aborted} ended"

    def _ended(self, count: int) -> None:
        self.stop.requests.aborted += count

    def cancel_handler(self) -> Detail:
        handler = self.handler
        if handler is None or handler.done():
            return None
        if handler.get_loop().is_closed():
            core_client.forget_pending([handler])
            return "its loop is closed"
        handler.cancel()
        if not handler.get_loop().is_running():
            # Nobody promises that the loop will turn again to let it end.
            core_client.forget_pending([handler])
        return None

    async def handler_stopped(self) -> Detail:
        handler = self.handler
        if handler is None:
            return None
        handler.cancel()
        await asyncio.wait([handler])
        if not handler.cancelled():
            handler.exception()  # it is logged already; mark it as retrieved
        return None

    async def core_stopped(self, seconds: float) -> Detail:
        return await self.core.result(seconds)

    def stop_core(self, seconds: float) -> Detail:
        try:
            return self.core.result_here(seconds)
        except TimeoutError:
            return "still under way elsewhere"

    def _stop_core(self, seconds: float) -> Detail:
        if self.client is None:
            return None
        stop = self.stop
        core_client.refuse_calls(self.client, lambda: refusal(stop, ENDED))
        # Whatever mode it has by now: kill gives no time.
        grace = 0.0 if self.stop.mode is Mode.KILL else seconds
        self._seen_before()
        ends = core_client.stop(self.client, grace, self.struck)
        self.stop.processes.extend(ends)
        return ", ".join(map(str, ends)) or None

    def _look_before(self, seconds: float) -> Look | None:
        return None if self.client is None else look(self._owned(), probes=ROWS)

    def _seen_before(self) -> Look | None:
        """What there was when the stop began; at the latest before the core stops."""
        try:
            return self.before.result_here(LOOK_SECONDS)
        except Exception as error:  # nothing there is worth to be late for
            logger.debug("[shutdown] nothing is known from before: %r", error)
            return None

    async def released(self) -> Detail:
        await self.front.result(self.stop.budget.remaining())
        if self.client is None:
            return None
        tasks = [
            task
            for task in core_client.io_tasks(self.client)
            if task.get_loop() is asyncio.get_running_loop()
        ]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._forget()
        await self.context.result(self.stop.budget.remaining())
        return None

    def release(self) -> Detail:
        self.front.result_here(self.stop.budget.remaining())
        if self.client is not None:
            pending = core_client.io_tasks(self.client)
            loop = self.loop()
            if loop is None or not loop.is_running():
                core_client.forget_pending(pending)
            self._forget()
            # On its own thread: someone else's socket in the context would hold
            # this one for ever.
            self.context.result_in_time(self.stop.budget.allot(Phase.RELEASE))
        return None

    def _owned(self) -> Owned:
        """What the engine holds, in this process and by those that it began."""
        processes = core_client.began(self.client)
        mine = set(self.state.files)
        made = {path: kind for kind, path in ledger.owned() if path in mine}
        self.made |= made | made_by(processes)
        return owned_by(processes, self.made)

    def _forget(self) -> None:
        processes = core_client.began(self.client)
        ledger.remove(self.state.files)
        release_for(processes)
        claims.settle([*self.state.files, *made_by(processes)])
        # A call into the core that began while the requests were being ended.
        core_client.fail_utility_calls(self.client, shutdown_error(ENDED))
        core_client.drop_outputs(self.client)

    def _release_front(self, seconds: float) -> None:
        from vllm.v1.metrics.prometheus import shutdown_prometheus

        shutdown_prometheus()
        renderer = getattr(self.engine, "renderer", None)
        if renderer is not None:
            renderer.shutdown()

    def _close_context(self, seconds: float) -> None:
        core_client.close_context(self.client)

    def audit(self) -> Detail:
        named = {end.pid for end in self.stop.processes}
        for process in core_client.began(self.client):
            if process.pid not in named:  # who stops it has not come to its end
                self.stop.processes.extend(ends_of(process, self.struck))
        found = [
            f"process {process.name} (pid {process.pid}) is alive"
            for process in core_client.began(self.client)
            if process.exitcode is None
        ]
        before = self._seen_before()
        if before is not None:
            rows = compare(before, look(self._owned(), before, ROWS), ROWS)
            self.stop.inventory.extend(rows)
            found += [line for line in leftovers(rows) if line not in found]
        handler = self.handler
        if handler is not None and not handler.done() and not handler.cancelling():
            found.append("the output handler is still running")
        self.stop.leftovers.extend(found)
        return "; ".join(found) or "nothing left"


def _no_handler() -> None:
    """Takes the place of ``_run_output_handler`` on an engine that stops."""


def _failed(task: asyncio.Task[Any]) -> bool:
    # The handler ends by itself only if it caught an error and passed it on.
    return task.done() and not task.cancelled()


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
