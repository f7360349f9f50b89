"""One kind of resource, and the eye for it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from .view import View


class Probe(Struct, frozen=True):
    """One row of the inventory.

    Attributes:
        row: The kind of resource, as a report names it.
        what: What of it an instance may hold, for people.
        noun: How one item is called in a leftover's line.
        state: What is said of an item that is still there.
        look: Gives the instance's items that are there at this moment, one
            text each. Never raises for a process, file or socket that vanishes
            meanwhile; what else it raises means that it could not look.
        must_go: What is there after a stop is a leftover. Without it the row is
            shown and nothing more, since the host program holds such things too.
    """

    row: str
    what: str
    noun: str
    state: str
    look: Callable[[View], frozenset[str]]
    must_go: bool = True

    def line(self, item: str) -> str:
        """One leftover, for a log: ``shared memory psm_ab12 is there``."""
        return f"{self.noun} {item} {self.state}"
