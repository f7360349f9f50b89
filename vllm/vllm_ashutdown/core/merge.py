"""One report of several: what each API server did, told as one stop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .phase import Outcome, Phase, PhaseRecord
from .report import RequestCounts, ShutdownReport

_FROM_BAD_TO_GOOD = (
    Outcome.FAILED,
    Outcome.EXPIRED,
    Outcome.RAISED,
    Outcome.DONE,
    Outcome.SKIPPED,
)


def merged_phase(records: Sequence[PhaseRecord]) -> PhaseRecord:
    """One record of the same phase in several processes, which ran side by side."""
    worst = min(records, key=lambda one: _FROM_BAD_TO_GOOD.index(one.outcome))
    began = min(one.began for one in records)
    return PhaseRecord(
        worst.phase,
        max(one.requested for one in records),
        max(one.began + one.spent for one in records) - began,
        worst.outcome,
        "; ".join(dict.fromkeys(one.detail for one in records if one.detail)),
        began,
    )


def merged_phases(
    reports: Iterable[ShutdownReport], phases: Iterable[Phase]
) -> list[PhaseRecord]:
    """One record for each of ``phases`` that a report has."""
    reports = list(reports)
    found = []
    for phase in phases:
        records = [
            record
            for report in reports
            for record in report.phases
            if record.phase is phase
        ]
        if records:
            found.append(merged_phase(records))
    return found


def merged_requests(reports: Iterable[ShutdownReport]) -> RequestCounts:
    """The sum."""
    total = RequestCounts()
    for report in reports:
        total.completed += report.requests.completed
        total.aborted += report.requests.aborted
        total.refused += report.requests.refused
    return total
