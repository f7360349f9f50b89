"""With what code a process leaves, for supervisors and for people."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Codes with a meaning. A supervisor restarts on any but the first."""

    STOPPED = 0
    """It was asked to stop, and did."""
    ENGINE_DIED = 70
    """An engine core or a worker died and nobody had asked (``EX_SOFTWARE``)."""
    PARENT_DIED = 71
    """A child whose parent was gone (``EX_OSERR``)."""
    WATCHDOG = 75
    """Its stop did not end in its time, and it was killed (``EX_TEMPFAIL``)."""
