"""What a shutdown keeps of one engine, beside it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from ..core.tally import Tally

if TYPE_CHECKING:
    from ..core.stop import Stop
    from ..telling.metrics import Meter
    from .async_llm_stop import AsyncLLMStop

_STATE = "_ashutdown"


class EngineState:
    """What one engine's shutdown must know before there is one.

    It holds no reference to the engine, so it never keeps it alive.

    Attributes:
        tally: What is in flight, for a drain.
        stop: The one stop of this engine, once it has begun.
        announce: Called, on the thread that begins the stop, when it begins.
        files: What the engine has in the file system, to be taken away.
        inputs: Queues of requests whose input is itself a stream.
        turn: Held by whoever steps an ``LLMEngine``, one at a time.
        door: Held by whoever adds a request to one whose core is elsewhere.
        inside: How many are in the midst of either.
        thread: The thread that does the stop of an ``LLMEngine``.
        meter: Keeps the metrics, where there are any.
        served: A server is around it: its stop is over when that is.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self.stop: Stop | None = None
        self.announce: list[Callable[[], None]] = []
        self.files: list[str] = []
        self.inputs: weakref.WeakSet[Any] = weakref.WeakSet()
        # Reentrant: a signal handler may ask for a stop while its thread does.
        self.lock = threading.RLock()
        # Likewise: a garbage collection may close the engine in the midst of a step.
        self.turn = threading.RLock()
        self.door = threading.RLock()
        self.inside = 0
        self.thread: int | None = None
        self.meter: Meter | None = None
        self.served = False
        self.steps: AsyncLLMStop | None = None
        self.task: asyncio.Task[None] | None = None


def state_of(engine: Any) -> EngineState:
    """The shutdown state of ``engine``, made at the first asking."""
    state: EngineState | None = vars(engine).get(_STATE)
    if state is None:
        state = vars(engine).setdefault(_STATE, EngineState())
    return state


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
