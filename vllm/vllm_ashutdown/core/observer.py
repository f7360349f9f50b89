"""What is told of a stop as it goes on: metrics, a service manager, a process title."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .phase import Phase, PhaseRecord
from .report import ShutdownReport

if TYPE_CHECKING:
    from .stop import Stop


class Observer:
    """Listens to one stop; this base hears everything and does nothing.

    Called on whichever thread runs the step, on the event loop as a rule: it must not
    wait for anything. What it raises is a warning and never changes the stop.
    """

    def entered(self, stop: Stop, phase: Phase) -> None:
        """``phase`` begins."""

    def left(self, stop: Stop, record: PhaseRecord) -> None:
        """A phase is over, or was skipped."""

    def moved(self, stop: Stop) -> None:
        """The mode went up, or the deadline came nearer."""

    def finished(self, stop: Stop, report: ShutdownReport) -> None:
        """All is over; ``report`` is the whole one, of a server too."""
