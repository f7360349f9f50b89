"""Whether an HTTP server lets requests in, and what it counts of them."""

from __future__ import annotations

from collections.abc import Callable

from ..core.tally import Tally


class Gate:
    """Open while serving, closed from the first sign of a stop on.

    A drain that was prepared and taken back opens it again.

    Attributes:
        tally: Counts the exchanges that were let in, so that a drain waits for
            their last byte.
        closed: No request is let in any more.
        refused: How many were refused.
        changed: Called whenever one more is, where somebody wants to know.
    """

    def __init__(self, tally: Tally, retry_after: int) -> None:
        """An open gate; ``retry_after`` is what a refusal says, in seconds."""
        self.tally = tally
        self.retry_after = retry_after
        self.closed = False
        self.refused = 0
        self.changed: Callable[[], None] | None = None

    def close(self) -> None:
        """Lets nothing in from now on."""
        self.closed = True

    def refuse(self) -> None:
        """Counts one more that is turned away."""
        self.refused += 1
        if self.changed is not None:
            self.changed()

    def open(self) -> None:
        """Lets everything in again, and forgets whom it has refused."""
        self.closed = False
        self.refused = 0
