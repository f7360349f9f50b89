"""A shutdown report as one page for a browser, which needs nothing but itself.

No script, no font, no picture from anywhere: it can be sent by mail, kept as an
artifact of a build and opened without a network. It forbids itself all of that, too.
"""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..core.phase import Outcome, Phase, PhaseRecord
from ..core.report import ShutdownReport
from ..version import __version__
from . import words
from .timeline import charts

__all__ = ["page"]


def page(report: ShutdownReport) -> str:
    """The whole report as an HTML document."""
    # Every value is escaped, whatever a file or a process is called.
    environment = Environment(
        loader=PackageLoader("vllm_ashutdown.cli"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["span"] = words.span
    environment.filters["line"] = words.printable
    left = frozenset(report.leftovers)  # they have a list of their own
    held = [row for row in report.inventory if row.before or row.after or row.leftovers]
    return environment.get_template("report.html").render(
        report=report,
        mode=words.mode(report),
        reasons=[line for line in report.problems if line not in left],
        charts=charts(report),
        phases=[_phase(record, report) for record in report.phases],
        requests=_requests(report),
        held=held,
        unused=[row.name for row in report.inventory if row not in held],
        version=__version__,
    )


def _phase(record: PhaseRecord, report: ShutdownReport) -> dict[str, Any]:
    skipped = record.outcome is Outcome.SKIPPED
    bounded = 0 < record.requested < float("inf")
    used = 100 * record.spent / record.requested if bounded and not skipped else None
    detail = words.printable(record.detail)
    if record.phase is Phase.AUDIT and report.leftovers:
        detail = f"{len(report.leftovers)} left behind, see below"
    return {
        "name": str(record.phase),
        "kind": str(record.outcome),
        "outcome": words.OUTCOMES[record.outcome],
        "spent": "" if skipped else words.span(record.spent),
        "allotted": words.span(record.requested) if record.requested else "",
        "used": None if used is None else min(100.0, used),
        "detail": detail,
    }


def _requests(report: ShutdownReport) -> list[dict[str, Any]]:
    counts = report.requests
    rows = (
        ("completed", counts.completed, "ran on to their own end"),
        ("ended", counts.aborted, "got their one terminal event from the stop"),
        ("refused", counts.refused, "came too late and were told to try again"),
    )
    total = sum(count for _, count, _ in rows)
    return [
        {"name": name, "count": count, "what": what, "share": 100 * count / total}
        for name, count, what in rows
        if total
    ]
