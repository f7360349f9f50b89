"""One deadline for a whole stop, and how its phases share it.

Nested timers disagree: an outer grace of 15 s is worth nothing around an inner
5 s. So there is one deadline, armed by whatever asked for the stop, and every
wait of the stop is a share of what is left of it. Pure arithmetic; the clock is
injected.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct, structs

from .mode import Mode
from .phase import Phase

_SHARES = {
    # Of the teardown reserve, for each phase that has to wait for something.
    # What one leaves unspent goes to those behind it, never the other way.
    Phase.END: 0.10,
    Phase.HANDLER: 0.10,
    Phase.CORE: 0.55,
    Phase.RELEASE: 0.15,
    Phase.AUDIT: 0.10,
}
_ORDER = tuple(Phase)

KILL_SECONDS = 2.0
"""What is left of any budget once the stop is raised to kill: time to reap."""

DEATH_SECONDS = 0.9
"""The teardown reserve when a process has died: what is left of its engine holds
memory that the restart needs, and there is nobody to wait for."""


class Budget(Struct, frozen=True):
    """A stop's time: ``drain`` seconds for requests, then a teardown reserve.

    Attributes:
        drain: Seconds that requests in flight may run on; 0 for none, ``inf``
            for no limit.
        teardown: Seconds kept for everything after; finite, and no earlier
            phase can eat into it.
        armed_at: The clock's reading when the stop was asked for.
        clock: Monotonic seconds.
    """

    drain: float
    teardown: float
    armed_at: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def arm(
        cls,
        drain: float,
        teardown: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> Budget:
        """A budget that starts now."""
        return cls(drain, teardown, clock(), clock)

    @property
    def deadline(self) -> float:
        """When all of it is spent, on ``clock``."""
        return self.armed_at + self.drain + self.teardown

    def elapsed(self) -> float:
        """Seconds since the stop was asked for."""
        return self.clock() - self.armed_at

    def remaining(self) -> float:
        """Seconds left for everything, never negative."""
        return max(0.0, self.deadline - self.clock())

    def allot(self, phase: Phase) -> float:
        """Seconds that ``phase`` may take if it starts now, never negative.

        A phase gets all that is left, less the reserves of the phases behind
        it; so a fast phase makes those behind it richer, and a slow one cannot
        make them poorer than their own reserve.
        """
        if phase is Phase.DRAIN:
            return max(0.0, self.armed_at + self.drain - self.clock())
        if phase not in _SHARES:
            return 0.0  # it waits for nothing
        behind = _ORDER[_ORDER.index(phase) + 1 :]
        reserved = sum(_SHARES.get(later, 0.0) for later in behind)
        own = _SHARES.get(phase, 0.0) * self.teardown
        left = self.remaining()
        # Behind schedule, a phase still has its own reserve as long as the
        # whole budget has it.
        return max(0.0, min(left, max(own, left - reserved * self.teardown)))

    def without_drain(self) -> Budget:
        """This budget once nothing drains any more: what is left is teardown.

        Time that the requests did not need is nobody's: a core that hangs after
        a short drain does not get it on top.
        """
        return structs.replace(self, drain=min(self.drain, max(0.0, self.elapsed())))

    def raised_to(self, mode: Mode) -> Budget:
        """This budget once the stop is raised to ``mode``."""
        cut = self.without_drain()
        if mode is Mode.KILL:
            # The teardown begins anew here, so that each phase's reserve is a
            # share of what is left and not of what there was.
            left = min(KILL_SECONDS, cut.remaining())
            cut = structs.replace(cut, drain=self.elapsed(), teardown=left)
        return cut
