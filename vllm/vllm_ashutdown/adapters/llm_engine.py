"""vllm.v1.engine.llm_engine: ``LLMEngine`` gets an ordered shutdown.

It has no event loop and no output handler: whoever calls ``step()`` reads from the
core. So the stop ends that call first, and only then what it reads from.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import sys
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

from .. import settings
from ..core.budget import Budget
from ..core.files import ledger
from ..core.mode import Mode
from ..core.order import shut_down_here
from ..core.report import ShutdownReport
from ..core.stop import Stop
from ..core.trigger import Trigger
from ..errors import ENDED, REFUSED, EngineShutdownError
from . import core_client
from .engine_state import EngineState, state_of
from .exceptions import refusal
from .live import answer_for, live
from .llm_engine_stop import LLMEngineStop

logger = logging.getLogger("vllm.ashutdown")


def make_init(original: Callable[..., None]) -> Callable[..., None]:
    """``LLMEngine.__init__``: the engine is known until it is closed."""
    live.watch()

    @functools.wraps(original)
    def init_method(self: Any, *args: Any, **kwargs: Any) -> None:
        with ledger.making() as state_of(self).files:
            original(self, *args, **kwargs)
        live.add(self, shutdown)
        answer_for(self, _shut_down_beside)

    return init_method


def _shut_down_beside(engine: Any, trigger: Trigger) -> None:
    threading.Thread(
        target=shutdown, args=(engine, trigger), name="vllm-ashutdown", daemon=True
    ).start()


def make_shutdown(original: None) -> Callable[..., Any]:
    """``LLMEngine.shutdown``."""

    def shutdown_method(self: Any) -> ShutdownReport | None:
        """Shuts this engine down, in order, and returns when all of it is given back.

        Requests that are left are ended. A call that is under way in another thread
        ends with an ``EngineShutdownError``. Every call that needs the engine raises
        an ``EngineClosedError`` from then on; to close it again does nothing.

        Returns:
            What the stop did, and what it left; ``None`` where it is under way further
            up on this thread.
        """
        return shutdown(self, Trigger.call("shutdown()"))

    shutdown_method.__name__ = "shutdown"
    shutdown_method.__qualname__ = "LLMEngine.shutdown"
    return shutdown_method


def shutdown(engine: Any, trigger: Trigger | None = None) -> ShutdownReport | None:
    """See :func:`make_shutdown`; this is the same as a function."""
    state, here = state_of(engine), threading.get_ident()
    steps = LLMEngineStop(engine, state)
    made = Stop(
        Mode.ABORT,
        Budget.arm(0.0, settings.teardown_seconds()),
        trigger or Trigger.call("the end of its program"),
        raised=steps.raised,
    )
    try:
        with state.lock:
            if state.stop is None:  # a signal handler may have been faster
                state.thread = here
                state.stop = made
        if state.stop is made:
            shut_down_here(steps, made)
    finally:
        if state.stop is made:
            if not made.outcome.done():  # interrupted before its first step
                made.finish()
            made.forget()
            live.discard(engine)
    stop = state.stop
    if not stop.outcome.done() and state.thread == here:
        return None  # a signal handler, or a destructor, in the midst of it
    return stop.wait(stop.budget.remaining() + 1.0)


def make_del(original: Callable[..., None]) -> Callable[..., None]:
    """``LLMEngine.__del__``: silent, whatever state the engine is in."""
    is_finalizing = sys.is_finalizing  # module globals may be gone by then

    @functools.wraps(original)
    def del_method(self: Any) -> None:
        if not is_finalizing() and "engine_core" in vars(self):
            shutdown(self, Trigger.call("del"))
        if "dp_group" in vars(self):
            original(self)

    return del_method


def make_add_request(original: Callable[..., Any]) -> Callable[..., Any]:
    """``LLMEngine.add_request``: the engine's own door."""

    @functools.wraps(original)
    def add_request_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = state_of(self)
        # A step waits for a core that is elsewhere, which waits for a request.
        here = core_client.is_in_process(self.engine_core)
        lock = state.turn if here else state.door
        with _in_turn(state, lock, REFUSED), _interrupts_later():
            return original(self, *args, **kwargs)

    return add_request_method


def make_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """``LLMEngine.step``: it ends before what it reads from."""

    @functools.wraps(original)
    def step_method(self: Any) -> Any:
        state = state_of(self)
        with _in_turn(state, state.turn, ENDED):
            if not core_client.is_in_process(self.engine_core):
                # It waits for a core that may take its time, or be stuck: Ctrl-C must
                # reach it at once, and does no harm.
                return original(self)
            with _interrupts_later():
                return original(self)

    return step_method


@contextlib.contextmanager
def _in_turn(
    state: EngineState, lock: Any, message: str
) -> Generator[None, None, None]:
    """A block that a stop waits for. What breaks in it because of one says so."""
    with lock:
        if state.stop is not None:
            raise refusal(state.stop, message)
        state.inside += 1
        try:
            yield
        except EngineShutdownError:
            raise
        except Exception as error:
            if state.stop is None:
                raise
            raise refusal(state.stop, message) from error
        finally:
            state.inside -= 1


@contextlib.contextmanager
def _interrupts_later() -> Generator[None, None, None]:
    """A block in which Ctrl-C waits until it is over; a second one does not.

    What runs in it is a scheduler, a model and their bookkeeping, or a message of many
    parts: left half way, the engine would compute nonsense for whoever asks next. A
    program that has a handler of its own for SIGINT keeps it, and answers for what that
    does.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            signal.default_int_handler(number, frame)
        came = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt
