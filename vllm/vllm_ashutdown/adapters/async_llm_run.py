"""A stop of an ``AsyncLLM`` is begun, or joined, and run where it belongs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from .. import settings
from ..core.budget import Budget
from ..core.mode import Mode, parse_seconds
from ..core.order import shut_down, shut_down_here
from ..core.report import ShutdownReport
from ..core.stop import Stop
from ..core.trigger import Trigger
from .async_llm_stop import AsyncLLMStop
from .engine_state import state_of
from .observers import observers


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
    if state.stop is None:
        # Not for who only joins: the steps hold the engine, and nobody would let go.
        steps = AsyncLLMStop(engine, state)
        made = Stop(
            wanted,
            Budget.arm(
                drain, settings.teardown_seconds() if teardown is None else teardown
            ),
            trigger,
            raised=steps.raised,
        )
        with state.lock:
            if state.stop is None:  # nothing may come between this and the next line
                state.stop, state.steps = made, steps
                made.observers = observers(engine, state)
                return made, steps
    stop = state.stop
    stop.raise_to(wanted, trigger)
    return stop, None


def _wanted(
    engine: Any, timeout: float | None, mode: Mode | str | None
) -> tuple[Mode, float]:
    given = None if timeout is None else parse_seconds(timeout)
    named = None if mode is None else Mode.parse(mode)
    drain = _own_drain(engine)
    if given is not None:
        drain = given
    elif named is Mode.DRAIN and drain == 0:
        drain = float("inf")
    wanted = Mode.for_drain(drain) if named is None else named
    return wanted, drain if wanted is Mode.DRAIN else 0.0


def _own_drain(engine: Any) -> float:
    """``--shutdown-timeout``, as the engine has it."""
    config = getattr(engine, "vllm_config", None)
    return float(getattr(config, "shutdown_timeout", 0) or 0)


def longest(engine: Any) -> float:
    """Seconds that a stop of ``engine`` may take if nobody says anything else."""
    return _own_drain(engine) + settings.teardown_seconds()


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
    if steps.stop.outcome.done() and not steps.state.served:
        steps.stop.conclude(steps.stop.outcome.result())


def start_from_outside(engine: Any, trigger: Trigger) -> None:
    """Begins the stop from a thread that has nothing to do with the engine."""
    _, steps = begin(engine, None, None, trigger)
    if steps is not None:
        threading.Thread(
            target=_run_from_outside, args=(steps,), name="vllm-ashutdown", daemon=True
        ).start()


def _run_from_outside(steps: AsyncLLMStop) -> None:
    home_loop = steps.loop()
    if home_loop is not None and home_loop.is_running():
        home_loop.call_soon_threadsafe(_run_on, home_loop, steps)
        _see_to_it(steps)
    else:
        _run_here(steps)


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


def _is_on(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
