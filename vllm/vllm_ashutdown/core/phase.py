"""The steps of a stop, and what became of each."""

from __future__ import annotations

import enum

from msgspec import Struct


class Phase(enum.StrEnum):
    """The steps of the order, in the order. :mod:`.order` says why it is this one."""

    ANNOUNCE = "announce"
    ADMISSION = "admission"
    DRAIN = "drain"
    END = "end"
    HANDLER = "handler"
    CORE = "core"
    RELEASE = "release"
    HTTP = "http"
    """Closing the HTTP server and its socket; only where there is one."""
    AUDIT = "audit"


class Outcome(enum.StrEnum):
    """How a phase ended."""

    DONE = "done"
    SKIPPED = "skipped"
    EXPIRED = "expired"
    """Its share of the budget was out; the stop went on without it."""
    RAISED = "raised"
    """Cut short since the stop was raised to a stronger mode."""
    FAILED = "failed"
    """It raised; the error is logged and the stop went on."""


class PhaseRecord(Struct, frozen=True):
    """One phase of one stop.

    Attributes:
        phase: Which.
        requested: Seconds that the budget allotted; ``inf`` for a drain
            without limit, 0 for a phase that waits for nothing or was skipped.
        spent: Seconds that it took.
        outcome: How it ended.
        detail: What there is to say about it, for people; may be empty.
        began: Seconds from the first trigger to its begin. HTTP closes beside
            the core, so the phases do not simply follow one another.
    """

    phase: Phase
    requested: float
    spent: float
    outcome: Outcome
    detail: str = ""
    began: float = 0.0
