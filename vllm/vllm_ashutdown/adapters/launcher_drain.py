"""What steers a server's drain, and what shows it at ``/metrics``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import Callable
from typing import Any

from ..core.reading import counts_of
from ..core.tally import Tally
from ..http.before import Before
from ..http.gate import Gate
from ..http.peers import Peers
from ..http.preparation import Preparation
from ..telling.metrics import Meter
from ..tree import child
from ..tree.draining import WORD
from ..tree.message import Message
from . import output_processor
from .endpoint_plugins import PREPARATION
from .engine_state import EngineState, state_of
from .prometheus import VARIABLE

logger = logging.getLogger("vllm.ashutdown")

METRICS_PATH = "/metrics"


def steered(app: Any, engine: Any, gate: Gate) -> Preparation:
    """The drain of the server that serves ``engine`` with ``app``."""
    state = state_of(engine)
    preparation = _preparation(engine, state, gate, _peers())
    try:
        _show(app, state, preparation, gate)
    except Exception as error:  # of an older client of Prometheus, say
        logger.warning(
            "[shutdown] /metrics will show nothing of a stop; the server serves: %r",
            error,
        )
    tie = child.current()
    if tie is not None:
        tie.listeners[WORD] = _on_this_loop(preparation.hear)
    setattr(app.state, PREPARATION, preparation)
    return preparation


def _show(app: Any, state: EngineState, preparation: Preparation, gate: Gate) -> None:
    """Brings what ``/metrics`` says of a stop up to date whenever it is read."""
    state.meter = meter = Meter(
        preparation.reading, lambda: counts_of(state.stop, state.tally, gate.refused)
    )
    if os.environ.get(VARIABLE):
        # Another server may be asked, and reads what this one wrote last.
        state.tally.changed = gate.changed = _once_a_turn(meter.refresh)
    router = app.router
    router.middleware_stack = Before(
        router.middleware_stack, METRICS_PATH, meter.before_a_look
    )


def _peers() -> Peers | None:
    """The servers of the same launcher; ``None`` where this one is the only one."""
    tie = child.current()
    return None if tie is None else Peers(lambda words: tie.send({"is": WORD, **words}))


def _on_this_loop(call: Callable[[Message], None]) -> Callable[[Message], None]:
    loop = asyncio.get_running_loop()

    def soon(message: Message) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is over, and the server
            loop.call_soon_threadsafe(call, message)

    return soon


def _preparation(
    engine: Any, state: EngineState, gate: Gate, peers: Peers | None
) -> Preparation:
    processor = getattr(engine, "output_processor", None)
    config = getattr(engine, "vllm_config", None)
    drain = float(getattr(config, "shutdown_timeout", 0) or 0)

    def counting(count: Callable[[Any, Tally], Any]) -> Callable[[], None]:
        return lambda: None if processor is None else count(processor, state.tally)

    def changed() -> None:
        if state.meter is not None:
            if not gate.closed:
                state.meter.restart()
            state.meter.refresh()

    return Preparation(
        gate,
        stop=lambda: state.stop,
        watch=counting(output_processor.watch_requests),
        unwatch=counting(output_processor.unwatch_requests),
        changed=changed,
        peers=peers,
        seconds=drain or math.inf,
    )


def _once_a_turn(work: Callable[[], None]) -> Callable[[], None]:
    """Does ``work`` in the next turn of this loop, however often it is asked till then.

    Where thousands of requests end in one turn, that is one file written and not
    thousands.
    """
    loop, due = asyncio.get_running_loop(), False

    def do() -> None:
        nonlocal due
        due = False
        work()

    def ask() -> None:
        nonlocal due
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            return  # a stop on another thread: it tells when its phase is over
        if not due and here is loop:
            due = True
            loop.call_soon(do)

    return ask
