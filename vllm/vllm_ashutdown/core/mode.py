"""How hard a stop is: ``drain < abort < kill``. A stop only ever goes up."""

from __future__ import annotations

import enum
import math
from numbers import Real

from ..errors import InvalidSettingError


class Mode(enum.IntEnum):
    """What happens to the requests in flight, from the gentlest to the hardest.

    The order is part of the meaning: a stop that is under way can be raised to
    a stronger mode and never lowered. The three are PostgreSQL's smart, fast
    and immediate shutdown.
    """

    DRAIN = 1
    """Requests in flight run on, their outputs still flowing, up to a deadline."""
    ABORT = 2
    """Requests in flight are ended at once; processes get time to clean up."""
    KILL = 3
    """As abort, and the processes get no time at all."""

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def parse(cls, value: Mode | str) -> Mode:
        """The mode that ``value`` names.

        Raises:
            InvalidSettingError: ``value`` names no mode.
        """
        if isinstance(value, Mode):
            return value
        known = {str(mode): mode for mode in cls}
        if isinstance(value, str) and value.strip().lower() in known:
            return known[value.strip().lower()]
        raise InvalidSettingError("mode", value, "one of " + ", ".join(known))

    @classmethod
    def for_drain(cls, seconds: float) -> Mode:
        """vLLM's own rule for ``--shutdown-timeout``: 0 aborts, more drains."""
        return cls.DRAIN if seconds > 0 else cls.ABORT


def parse_seconds(value: object, name: str = "timeout") -> float:
    """``value`` as a span of time in seconds: zero, positive, or infinite.

    Raises:
        InvalidSettingError: it is negative, not a number, or of another type.
    """
    allowed = "a number of seconds, 0 or more (infinity waits without limit)"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidSettingError(name, value, allowed)
    try:
        seconds = float(value)
    except OverflowError:
        raise InvalidSettingError(name, value, allowed) from None
    if math.isnan(seconds) or seconds < 0:
        raise InvalidSettingError(name, value, allowed)
    return seconds
