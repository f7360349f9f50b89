"""A drain that is prepared: not ready, nobody let in, and nothing taken down.

What asks for it (a preStop hook, a deployment script) waits for its end, and the signal
that comes then finds nothing in flight. As long as none has come it can be taken back.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..core.stop import Stop
from .gate import Gate

logger = logging.getLogger("vllm.ashutdown")

SERVING = "serving"
PREPARE = "prepare"
COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class View:
    """What a server says of its drain.

    Attributes:
        phase: ``serving``, ``prepare``, a phase of the order, or ``complete``.
        in_flight: Requests that run.
        remaining: Seconds until the latest who waits gives up, or of the budget of
            a stop; ``None`` where there is no such limit.
    """

    phase: str
    in_flight: int
    remaining: float | None

    @property
    def idle(self) -> bool:
        """Nobody is let in and nothing runs."""
        return self.phase != SERVING and not self.in_flight

    def plain(self) -> dict[str, Any]:
        """For an answer in JSON."""
        return {
            "phase": self.phase,
            "idle": self.idle,
            "in_flight": self.in_flight,
            "remaining_seconds": self.remaining,
        }


class Preparation:
    """What a server knows of its drain. Belongs to the server's event loop.

    Attributes:
        under_way: Nobody is let in, and no stop has begun.
    """

    def __init__(
        self,
        gate: Gate,
        *,
        stop: Callable[[], Stop | None],
        watch: Callable[[], None] = lambda: None,
        unwatch: Callable[[], None] = lambda: None,
        seconds: float = math.inf,
    ) -> None:
        """Nothing is prepared.

        Args:
            gate: Of the server.
            stop: The stop of its engine, once there is one.
            watch: Begins to count what is in flight in the engine, as a stop does.
            unwatch: Ends that.
            seconds: How long somebody waits who does not say.
        """
        self.seconds = seconds
        self.under_way = False
        self._gate = gate
        self._stop = stop
        self._watch, self._unwatch = watch, unwatch
        self._deadline = -math.inf
        self._settled = asyncio.Event()
        self._stops = False

    # -- asking ----------------------------------------------------------------

    async def drain(self, seconds: float) -> View:
        """Prepares, or joins what is under way, and waits until nothing is in flight.

        Args:
            seconds: The most to wait. Requests run on after that, too.

        Returns:
            What it had come to. ``serving`` if it was taken back meanwhile.
        """
        loop = asyncio.get_running_loop()
        if not self._gate.closed:
            self._begin()
        settled = self._settled
        self._deadline = max(self._deadline, loop.time() + seconds)
        idle = loop.create_task(self._gate.tally.idle())
        over = loop.create_task(settled.wait())
        try:
            await asyncio.wait(
                {idle, over},
                timeout=seconds if seconds < threading.TIMEOUT_MAX else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            idle.cancel()
            over.cancel()
        view = self.view()
        if settled.is_set() and not self._stops:
            # It may be prepared anew by now, for others.
            return replace(view, phase=SERVING)
        return view

    def _begin(self) -> None:
        self._gate.close()
        self._watch()
        self.under_way = True
        logger.info(
            "[shutdown] drain prepared: not ready, nobody is let in; %d requests in "
            "flight",
            self._gate.tally.requests,
        )

    def take_back(self) -> bool:
        """Lets requests in again, if no stop has begun; who waits is told.

        Returns:
            Whether the server serves.
        """
        if not self.under_way:
            return not self._gate.closed
        self.under_way = False
        self._unwatch()
        self._gate.open()
        self._deadline = -math.inf
        self._settled.set()
        self._settled = asyncio.Event()
        logger.info("[shutdown] drain taken back: the server serves again")
        return True

    # -- what a stop does to it ------------------------------------------------

    def overtake(self) -> None:
        """A stop begins, from any thread: nothing can be taken back from here on."""
        self._stops = True
        self.under_way = False
        self._gate.close()

    def settle(self) -> None:
        """Nothing is in flight any more, however it ended: nobody waits on."""
        self._settled.set()

    # -- looking ---------------------------------------------------------------

    def view(self) -> View:
        """How it stands now."""
        in_flight = self._gate.tally.requests
        stop = self._stop()
        if stop is not None:
            phase = COMPLETE if stop.outcome.done() else str(stop.phase)
            return View(phase, in_flight, _finite(stop.budget.remaining()))
        if self._stops:  # the order is about to be entered
            return View("announce", in_flight, None)
        if not self.under_way:
            return View(SERVING, in_flight, None)
        left = self._deadline - asyncio.get_running_loop().time()
        return View(PREPARE, in_flight, _finite(max(0.0, left)))


def _finite(seconds: float) -> float | None:
    return round(seconds, 3) if math.isfinite(seconds) else None
