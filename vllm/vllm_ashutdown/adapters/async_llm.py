"""vllm.v1.engine.async_llm: ``AsyncLLM`` gets its ordered shutdown.

``ashutdown()`` is the coroutine; ``shutdown()`` is the thin wrapper around the
same order for ``__del__``, other threads and code without a loop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any

from .. import settings
from ..core.budget import Budget
from ..core.exchange import current_exchange
from ..core.files import ledger
from ..core.mode import Mode, parse_seconds
from ..core.order import shut_down, shut_down_here
from ..core.phase import Phase
from ..core.report import ShutdownReport
from ..core.stop import Detail, Stop
from ..core.tally import Tally, WatchedMap
from ..core.thread import OnceInThread
from ..core.trigger import Trigger
from ..errors import DIED, ENDED, REFUSED, EngineShutdownError
from ..inventory import Look, Owned, compare, leftovers, look
from ..tree.belongings import ROWS, made_by, owned_by, release_for
from ..tree.ending import ends_of
from ..tree.home import home
from ..tree.member import Member
from . import core_client, output_processor
from .exceptions import shutdown_error

logger = logging.getLogger("vllm.ashutdown")

_STATE = "_ashutdown"
_live: weakref.WeakSet[Any] = weakref.WeakSet()


class EngineState:
    """What one engine's shutdown must know before there is one.

    It holds no reference to the engine, so it never keeps it alive.

    Attributes:
        tally: What is in flight, for a drain.
        stop: The one stop of this engine, once it has begun.
        announce: Called, on the thread that begins the stop, when it begins.
        files: What the engine has in the file system, to be taken away.
        inputs: Queues of requests whose input is itself a stream.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self.stop: Stop | None = None
        self.announce: list[Callable[[], None]] = []
        self.files: list[str] = []
        self.inputs: weakref.WeakSet[Any] = weakref.WeakSet()
        self.lock = threading.Lock()
        self.steps: AsyncLLMStop | None = None
        self.task: asyncio.Task[None] | None = None


def state_of(engine: Any) -> EngineState:
    """The shutdown state of ``engine``, made at the first asking."""
    state: EngineState | None = vars(engine).get(_STATE)
    if state is None:
        state = vars(engine).setdefault(_STATE, EngineState())
    return state


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
        self.before: Look | None = None
        self.made: dict[str, str] = {}
        self.struck: set[int] = set()
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
        core_client.refuse_calls(self.client, lambda: shutdown_error(ENDED))
        # Whatever mode it has by now: kill gives no time.
        grace = 0.0 if self.stop.mode is Mode.KILL else seconds
        self.before = look(self._owned(), probes=ROWS)
        ends = core_client.stop(self.client, grace, self.struck)
        self.stop.processes.extend(ends)
        return ", ".join(map(str, ends)) or None

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
        ledger.remove(self.state.files)
        release_for(core_client.began(self.client))
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
        if self.before is not None:
            rows = compare(self.before, look(self._owned(), self.before, ROWS), ROWS)
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


def _is_on(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


# -- beginning a stop, joining one ---------------------------------------------


def begin(
    engine: Any,
    timeout: float | None,
    mode: Mode | str | None,
    trigger: Trigger,
    teardown: float | None = None,
) -> tuple[Stop, AsyncLLMStop | None]:
    """The stop of ``engine``: a new one, or the one under way, raised if need be.

    Args:
        engine: An ``AsyncLLM``.
        timeout: Seconds to drain, as :func:`make_ashutdown` has it.
        mode: The mode, likewise.
        trigger: What asks.
        teardown: Seconds kept for what comes after; the setting's, if not given.

    Raises:
        InvalidSettingError: a bad ``timeout`` or ``mode``; nothing is touched.

    Returns:
        The stop, and for a new one the steps, which the caller must run.
    """
    wanted, drain = _wanted(engine, timeout, mode)
    state = state_of(engine)
    with state.lock:
        if state.stop is None:
            steps = state.steps = AsyncLLMStop(engine, state)
            state.stop = Stop(
                wanted,
                Budget.arm(
                    drain, settings.teardown_seconds() if teardown is None else teardown
                ),
                trigger,
                raised=steps.raised,
            )
            return state.stop, steps
        stop = state.stop
    stop.raise_to(wanted, trigger)
    return stop, None


def _wanted(
    engine: Any, timeout: float | None, mode: Mode | str | None
) -> tuple[Mode, float]:
    given = None if timeout is None else parse_seconds(timeout)
    named = None if mode is None else Mode.parse(mode)
    config = getattr(engine, "vllm_config", None)
    drain = float(getattr(config, "shutdown_timeout", 0) or 0)
    if given is not None:
        drain = given
    elif named is Mode.DRAIN and drain == 0:
        drain = float("inf")
    wanted = Mode.for_drain(drain) if named is None else named
    return wanted, drain if wanted is Mode.DRAIN else 0.0


async def ashutdown(
    engine: Any,
    timeout: float | None = None,
    *,
    mode: Mode | str | None = None,
    trigger: Trigger | None = None,
) -> ShutdownReport:
    """See :func:`make_ashutdown`; this is the same as a function."""
    trigger = trigger or Trigger.call("ashutdown()")
    return await start(engine, timeout, mode=mode, trigger=trigger).join()


def start(
    engine: Any,
    timeout: float | None = None,
    *,
    mode: Mode | str | None = None,
    trigger: Trigger,
    teardown: float | None = None,
) -> Stop:
    """Begins the stop, or raises the one under way, and does not wait.

    Raises:
        InvalidSettingError: a bad ``timeout`` or ``mode``; nothing is touched.
    """
    stop, steps = begin(engine, timeout, mode, trigger, teardown)
    if steps is not None:
        _run(steps)
    return stop


def _run(steps: AsyncLLMStop) -> None:
    """Starts the order where it belongs: on the engine's loop, if that turns."""
    home = steps.loop()
    here = asyncio.get_running_loop()
    if home is None or home is here:
        _run_on(here, steps)
    elif home.is_running():
        home.call_soon_threadsafe(_run_on, home, steps)
        threading.Thread(
            target=_see_to_it, args=(steps,), name="vllm-ashutdown-see", daemon=True
        ).start()
    else:
        # It cannot turn, so the order cannot run there; and this loop must not
        # be held by it.
        threading.Thread(
            target=_run_here, args=(steps,), name="vllm-ashutdown", daemon=True
        ).start()


def _see_to_it(steps: AsyncLLMStop) -> None:
    """Does the order here if the engine's loop stops turning before it is over."""
    stop = steps.stop
    if stop.wait(stop.budget.remaining() + 1.0) is None:
        _run_here(steps)


def _run_on(loop: asyncio.AbstractEventLoop, steps: AsyncLLMStop) -> None:
    task = loop.create_task(shut_down(steps, steps.stop), name="vllm-ashutdown")
    steps.state.task = task  # a loop holds its tasks only weakly

    def over(_: asyncio.Task[None]) -> None:
        if not steps.stop.outcome.done():
            # Cancelled before its first step, since the loop is being closed.
            _run_here(steps)
        _let_go(steps)

    task.add_done_callback(over)


def _run_here(steps: AsyncLLMStop) -> None:
    if steps.state.task is None:
        steps.stop.cannot_drain()
    else:
        # A run is under way that may be waiting for requests to finish.
        steps.stop.raise_to(Mode.ABORT, Trigger.call("shutdown()"))
    try:
        shut_down_here(steps, steps.stop)
    finally:
        _let_go(steps)


def _let_go(steps: AsyncLLMStop) -> None:
    task = steps.state.task
    if task is not None and not task.done():
        return  # it does this itself when it finds everything done
    steps.state.task = steps.state.steps = None
    steps.stop.forget()
    steps.state.announce.clear()


def shutdown(engine: Any, timeout: float | None = None) -> None:
    """See :func:`make_shutdown`; this is the same as a function."""
    state = state_of(engine)
    stop, mine = begin(engine, timeout, None, Trigger.call("shutdown()"))
    steps = state.steps
    if steps is None or stop.outcome.done():
        return
    home = steps.loop()
    if home is not None and home.is_running() and not _is_on(home):
        if mine is not None:
            home.call_soon_threadsafe(_run_on, home, steps)
        # The loop may be blocked for longer than the whole budget, by whoever
        # waits for us in turn, say. Then there is no order left to keep.
        if stop.wait(stop.budget.remaining() + 1.0) is not None:
            return
    # Either nothing runs yet, or a run that cannot be waited for: on this very
    # thread's loop, or on one that does not turn. Each step can be entered
    # twice, so they are done here, and the run finds them done.
    _run_here(steps)


def _close_live_engines() -> None:
    """Runs before the interpreter starts to take itself apart."""
    for engine in list(_live):
        shutdown(engine)


# -- what takes the place of vLLM's attributes ---------------------------------


def make_ashutdown(original: None) -> Callable[..., Any]:
    """``AsyncLLM.ashutdown``."""

    async def ashutdown_method(
        self: Any, timeout: float | None = None, *, mode: Mode | str | None = None
    ) -> ShutdownReport:
        """Shuts this engine down, in order, on its event loop.

        Drains or ends the requests in flight, cancels and awaits the output
        handler, and only then stops the engine core. Can be called from any
        loop and as often as you like: there is one run, which every caller
        joins, and which a stronger mode raises. If the caller is cancelled, the
        teardown still ends, in abort mode, before the cancellation goes on.

        Args:
            timeout: Seconds that requests in flight may run on; 0 ends them at
                once. ``None`` stands for the engine's own ``--shutdown-timeout``.
            mode: ``"drain"``, ``"abort"`` or ``"kill"``, where ``timeout`` should
                not decide. Drain without any timeout drains without limit; abort
                and kill drain for no time at all, whatever ``timeout`` says.

        Returns:
            What the stop did, and what it left.

        Raises:
            InvalidSettingError: a negative or non-numeric ``timeout``, or an
                unknown ``mode``. The engine runs on.
        """
        return await ashutdown(self, timeout, mode=mode)

    ashutdown_method.__name__ = "ashutdown"
    ashutdown_method.__qualname__ = "AsyncLLM.ashutdown"
    return ashutdown_method


def make_shutdown(original: Callable[..., None]) -> Callable[..., None]:
    """``AsyncLLM.shutdown``."""

    @functools.wraps(original)
    def shutdown_method(self: Any, timeout: float | None = None) -> None:
        """Shuts this engine down, in order, and returns when that is done.

        For ``__del__``, for other threads and for code without an event loop;
        inside a coroutine ``await ashutdown()`` keeps the loop turning. On the
        loop's own thread nothing can drain, so requests in flight are ended at
        once there; from another thread it is ``ashutdown(timeout)``.
        """
        shutdown(self, timeout)

    return shutdown_method


def make_del(original: Callable[..., None]) -> Callable[..., None]:
    """``AsyncLLM.__del__``: silent, whatever state the engine is in."""
    is_finalizing = sys.is_finalizing  # module globals may be gone by then

    def del_method(self: Any) -> None:
        if is_finalizing():
            return  # the atexit hook has closed it
        if "engine_core" in vars(self) or "renderer" in vars(self):
            self.shutdown()

    del_method.__qualname__ = "AsyncLLM.__del__"
    return del_method


def make_init(original: Callable[..., None]) -> Callable[..., None]:
    """``AsyncLLM.__init__``: the engine is known until it is closed."""
    atexit.register(_close_live_engines)

    @functools.wraps(original)
    def init_method(self: Any, *args: Any, **kwargs: Any) -> None:
        with ledger.making() as state_of(self).files:
            original(self, *args, **kwargs)
        _live.add(self)
        here, client = home(), getattr(self, "engine_core", None)
        for process in core_client.processes(client):
            if here is not None:
                decide = functools.partial(_decide, weakref.ref(self))
                here.record(process.pid).decide = decide

    return init_method


def _decide(engine: weakref.ref[Any], member: Member, number: int) -> bool:
    """What a signal to a core or a worker of an engine in a program means.

    Ctrl-C goes to the whole group, and what it means is the program's to say. A
    SIGTERM to the child alone stops the engine that it belongs to, in order.
    """
    if number == signal.SIGINT:
        return True
    there = engine()
    if there is None:
        return False
    logger.info("[shutdown] %s received SIGTERM: its engine stops", member)
    _, steps = begin(there, None, None, Trigger.signal(number, str(member)))
    if steps is not None:
        threading.Thread(
            target=_run_from_outside, args=(steps,), name="vllm-ashutdown", daemon=True
        ).start()
    return True


def _run_from_outside(steps: AsyncLLMStop) -> None:
    home_loop = steps.loop()
    if home_loop is not None and home_loop.is_running():
        home_loop.call_soon_threadsafe(_run_on, home_loop, steps)
        _see_to_it(steps)
    else:
        _run_here(steps)


def make_add_request(original: Callable[..., Any]) -> Callable[..., Any]:
    """``AsyncLLM.add_request``: the engine's own door. Once a request, not a token."""

    @functools.wraps(original)
    async def add_request_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = state_of(self)
        exchange = current_exchange.get()
        stop = state.stop
        # What belongs to an HTTP request that was let in before the stop is let
        # in too while it drains: its answer is not complete without it.
        part_of_drain = (
            stop is not None
            and stop.mode is Mode.DRAIN
            and exchange is not None
            and exchange.admitted
        )
        if stop is not None and not part_of_drain:
            stop.requests.refused += 1
            if exchange is not None:
                exchange.end(REFUSED)
            raise shutdown_error(REFUSED)
        with state.tally.busy():
            try:
                queue = await original(self, *args, **kwargs)
            except Exception as error:
                if state.stop is None or _is_the_clients(error):
                    raise
                # It met a half-stopped engine; whatever it tripped over, the
                # cause is the stop, and it is safe to retry.
                state.stop.requests.refused += 1
                if exchange is not None:
                    exchange.end(REFUSED)
                raise shutdown_error(REFUSED) from error
        reading = getattr(queue, "_input_stream_task", None)
        if reading is not None:
            state.inputs.add(queue)
            state.tally.hold(reading)
        if exchange is not None:
            setattr(queue, output_processor.EXCHANGE_ATTRIBUTE, exchange)
            if isinstance(queue.output, EngineShutdownError):
                exchange.end(ENDED)  # while its first message was being sent
        handler = self.output_handler
        if handler is not None and handler.done() and queue.output is None:
            # The core died while this request was on its way in: the error was
            # passed on before it was there to receive it.
            if exchange is not None:
                exchange.end(DIED)
            queue.put(self.dead_error)
        return queue

    return add_request_method


def _is_the_clients(error: Exception) -> bool:
    from vllm.exceptions import VLLMClientError

    return isinstance(error, VLLMClientError)


@contextlib.contextmanager
def announced(engine: Any, announce: Callable[[], None]) -> Generator[None, None, None]:
    """Calls ``announce`` the moment a stop of ``engine`` begins, in the block."""
    state = state_of(engine)
    state.announce.append(announce)
    try:
        yield
    finally:
        if announce in state.announce:
            state.announce.remove(announce)
