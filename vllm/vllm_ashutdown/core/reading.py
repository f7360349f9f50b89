"""How a server or an engine stands, at one moment."""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct

from .phase import Phase
from .report import RequestCounts
from .stop import Stop
from .tally import Tally

SERVING = "serving"
PREPARE = "prepare"
"""A drain is prepared: nobody is let in, and no stop has begun."""
COMPLETE = "complete"

PHASES = (SERVING, PREPARE, *map(str, Phase), COMPLETE)
"""All that a server is ever at, in this order."""

_UNCOUNTED = (Phase.ANNOUNCE, Phase.ADMISSION, Phase.DRAIN)
"""In these nobody has counted yet what came to its own end."""


class Reading(Struct, frozen=True):
    """What there is to tell.

    Attributes:
        phase: One of :data:`PHASES`.
        in_flight: Requests that run.
        busy_servers: Of several API servers of one launcher, those not idle yet.
        remaining: Seconds left of whatever limits what goes on, ``inf`` where nothing
            does; 0 while it serves.
    """

    phase: str = SERVING
    in_flight: int = 0
    remaining: float = 0.0
    busy_servers: int = 0

    @property
    def idle(self) -> bool:
        """Nobody is let in and nothing runs, as far as is known."""
        return self.phase != SERVING and not self.in_flight and not self.busy_servers

    def plain(self) -> dict[str, Any]:
        """For JSON: ``null`` seconds remain while it serves, and without a limit."""
        limited = self.phase != SERVING and math.isfinite(self.remaining)
        return {
            "phase": self.phase,
            "idle": self.idle,
            "in_flight": self.in_flight,
            "busy_servers": self.busy_servers,
            "remaining_seconds": round(self.remaining, 3) if limited else None,
        }


def of_stop(stop: Stop, tally: Tally) -> Reading:
    """How a stop stands."""
    phase = COMPLETE if stop.outcome.done() else str(stop.phase)
    return Reading(phase, tally.requests, stop.budget.remaining())


def counts_of(stop: Stop | None, tally: Tally, refused: int = 0) -> RequestCounts:
    """What became of the requests so far; at the end it is what the report says.

    Args:
        stop: Of the engine, once there is one.
        tally: Of the engine.
        refused: Whom HTTP has turned away.
    """
    if stop is None:
        return RequestCounts(completed=tally.gone, refused=refused)
    counted = stop.requests
    completed = tally.gone if stop.phase in _UNCOUNTED else counted.completed
    return RequestCounts(completed, counted.aborted, counted.refused + refused)
