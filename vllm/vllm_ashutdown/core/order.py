"""The order of a stop. This is the heart; everything else serves it.

Each step is safe since the one before it is over:

announce    Readiness turns false first: load balancers need to know before
            anything gets harder to reach.
admission   The engine's own door closes. Without it the request map refills
            while it drains, and the drain never ends.
drain       Requests in flight run on with the output handler alive. Cancelling
            the handler first would lose every stream of a draining server.
end         Each request that is left gets exactly one terminal event: nobody
            waits for ever, and no one takes a cut answer for a whole one.
handler     The output handler is cancelled and awaited. From here on nothing
            reads from the core.
core        The core's processes stop, off the loop, which keeps turning. There
            is nobody left to find the core gone, so there is no dead-engine
            error to tell from a real one: the race window is closed. A
            server's HTTP closes beside it, for nothing in it needs the core now.
release     What the engine holds in this process, in reverse order of making.
audit       What is left over? The answer is a value, the report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Protocol

from .mode import Mode
from .phase import Phase
from .stop import Detail, Stop
from .trigger import Trigger

CORE_KILL_SHARE = 0.25
"""Of the core's time: kept back to ask, kill and reap what did not leave by itself."""


class Stoppable(Protocol):
    """What the order needs of an engine. Each step may be entered twice."""

    def announce(self) -> Detail:
        """Makes readiness false."""

    def close_admission(self) -> Detail:
        """Refuses new requests from now on."""

    async def drained(self) -> Detail:
        """Returns when nothing is in flight."""

    def end_requests(self) -> Generator[None, None, Detail]:
        """Ends each request that is left, yielding before it holds the loop long."""

    def cancel_handler(self) -> Detail:
        """Cancels the output handler; it may not be over when this returns."""

    async def handler_stopped(self) -> Detail:
        """Cancels the output handler and returns when it is over."""

    async def core_stopped(self, seconds: float) -> Detail:
        """Returns when the core's processes are gone, asked first, killed last."""

    def stop_core(self, seconds: float) -> Detail:
        """The same, blocking."""

    async def released(self) -> Detail:
        """Returns when the engine holds nothing in this process."""

    def release(self) -> Detail:
        """The same, as far as it goes without a loop that turns."""

    def audit(self) -> Detail:
        """Looks for leftovers and puts them on the stop."""


async def shut_down(engine: Stoppable, stop: Stop) -> None:
    """The whole stop, on the engine's own loop."""
    try:
        stop.do(Phase.ANNOUNCE, engine.announce)
        stop.do(Phase.ADMISSION, engine.close_admission)
        await stop.step(Phase.DRAIN, engine.drained)
        await stop.step(Phase.END, lambda: in_slices(engine.end_requests()))
        await stop.step(Phase.HANDLER, engine.handler_stopped)
        await stop.step(Phase.CORE, lambda: engine.core_stopped(core_seconds(stop)))
        await stop.step(Phase.RELEASE, engine.released)
        stop.do(Phase.AUDIT, engine.audit)
    finally:
        stop.finish()


def shut_down_here(engine: Stoppable, stop: Stop) -> None:
    """The same order where no loop can turn: ``__del__``, a closed loop, atexit.

    Nothing can drain without a loop, so it begins with abort. The handler is
    cancelled but cannot be awaited; a cancellation that is already on its way
    wins over whatever the handler would find next, so the order holds.

    An interrupt (Ctrl-C) makes it kill, and goes on when the order is over.
    """
    steps: tuple[tuple[Phase, Callable[[], Detail]], ...] = (
        (Phase.ANNOUNCE, engine.announce),
        (Phase.ADMISSION, engine.close_admission),
        (Phase.DRAIN, lambda: None),  # recorded as skipped
        (Phase.END, lambda: at_once(engine.end_requests())),
        (Phase.HANDLER, engine.cancel_handler),
        (Phase.CORE, lambda: engine.stop_core(core_seconds(stop))),
        (Phase.RELEASE, engine.release),
        (Phase.AUDIT, engine.audit),
    )
    interrupt: BaseException | None = None
    for phase, work in steps:
        for _ in range(2):  # the one that is interrupted is entered once more
            try:
                stop.do(phase, work)
                break
            except BaseException as error:  # Ctrl-C, most likely
                interrupt = error
                stop.raise_to(Mode.KILL, Trigger.call(type(error).__name__))
    stop.finish()
    if interrupt is not None:
        raise interrupt


def core_seconds(stop: Stop) -> float:
    """What the core may take to leave by itself, so that killing it is in time."""
    return stop.budget.allot(Phase.CORE) * (1 - CORE_KILL_SHARE)


async def in_slices(work: Generator[None, None, Detail]) -> Detail:
    """Drives ``work`` with a turn of the loop at each of its yields.

    When its time is out, the rest is done without letting go: it is the end of requests
    whose callers would wait for ever, and to hold the loop is the lesser evil.
    """
    while True:
        try:
            next(work)
        except StopIteration as over:
            detail: Detail = over.value
            return detail
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            at_once(work)
            raise


def at_once(work: Generator[None, None, Detail]) -> Detail:
    """Drives ``work`` to its end without letting go."""
    while True:
        try:
            next(work)
        except StopIteration as over:
            detail: Detail = over.value
            return detail
