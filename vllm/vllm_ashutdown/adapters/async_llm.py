"""vllm.v1.engine.async_llm: ``AsyncLLM`` gets its ordered shutdown.

``ashutdown()`` is the coroutine; ``shutdown()`` is the thin wrapper around the
same order for ``__del__``, other threads and code without a loop.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..core.exchange import current_exchange
from ..core.files import ledger
from ..core.mode import Mode
from ..errors import DIED, ENDED, REFUSED, EngineShutdownError
from ..starting import start
from . import async_llm_loop, output_processor
from .engine_state import state_of
from .exceptions import refusal, shutdown_error
from .live import answer_for, live
from .readiness import get_ready

if TYPE_CHECKING:
    from ..core.report import ShutdownReport

logger = logging.getLogger("vllm.ashutdown")


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
        from .async_llm_run import ashutdown

        return await ashutdown(self, timeout, mode=mode)

    ashutdown_method.__name__ = "ashutdown"
    ashutdown_method.__qualname__ = "AsyncLLM.ashutdown"
    return ashutdown_method


def make_aenter(original: None) -> Callable[..., Any]:
    """``AsyncLLM.__aenter__``."""

    async def aenter_method(self: Any) -> Any:
        """``async with engine:`` shuts it down at the end of the block."""
        return self

    aenter_method.__name__ = "__aenter__"
    return aenter_method


def make_aexit(original: None) -> Callable[..., Any]:
    """``AsyncLLM.__aexit__``."""

    async def aexit_method(self: Any, *error: Any) -> None:
        """Requests that are left may run on only where the block ended by itself."""
        from .async_llm_run import ashutdown

        await ashutdown(self, timeout=None if error[0] is None else 0)

    aexit_method.__name__ = "__aexit__"
    return aexit_method


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
        from .async_llm_run import shutdown

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
    live.watch()

    @functools.wraps(original)
    def init_method(self: Any, *args: Any, **kwargs: Any) -> None:
        start.reached("the engine starts")
        with ledger.making() as state_of(self).files:
            original(self, *args, **kwargs)
        get_ready()  # where its cores were begun by someone else
        from .async_llm_run import shutdown, start_from_outside

        start.reached("the application starts")
        live.add(self, shutdown)
        answer_for(self, start_from_outside)

    return init_method


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
            raise refusal(stop, REFUSED)
        if stop is None:
            async_llm_loop.settle(self)
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
