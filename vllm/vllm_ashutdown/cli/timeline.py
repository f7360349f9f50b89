"""A stop on a time axis: where each bar begins, how long it is, where the ticks are.

In parts of the axis' length, so that whoever draws it needs no measure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..core.phase import Outcome, Phase, PhaseRecord
from ..core.report import ProcessEnd, ShutdownReport
from .words import span

TICKS = 8
"""At most so many steps from one end of an axis to the other."""

SHORTEST = 1e-9
"""An axis of fewer seconds than this is none."""

DRAIN_SHARE = 0.6
"""A drain with more of the time than this hides what follows: that is drawn again."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One mark on an axis: where, in percent, and what it says."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a chart.

    Attributes:
        name: Whose it is.
        kind: What it is drawn as: an outcome, or how a process ended.
        left: Where it begins, in percent.
        width: How long it is, in percent.
        took: What it says at its end.
        title: The whole of it in words.
    """

    name: str
    kind: str
    left: float
    width: float
    took: str
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Some of the time of a stop, with all that happened in it.

    Attributes:
        title: Which part it is; empty for the whole.
        begin: Where it begins, in seconds from the first trigger.
        end: Where it ends.
        phases: The steps, in their order.
        processes: From the trigger to the end of each, where that is known.
    """

    title: str
    begin: float
    end: float
    phases: tuple[Bar, ...]
    processes: tuple[Bar, ...]

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """Round numbers along the axis, counted from where it begins."""
        length = self.end - self.begin
        if length < SHORTEST:
            return (Tick(0.0, "0"),)
        step = round_step(length / TICKS)
        count = math.floor(length / step + 1e-9)
        return tuple(
            Tick(100 * number * step / length, span(number * step) if number else "0")
            for number in range(count + 1)
        )


def charts(report: ShutdownReport) -> tuple[Chart, ...]:
    """The whole stop; and what follows a long drain, where it would be too small."""
    ends = [one.began + one.spent for one in report.phases]
    ends += [one.ended for one in report.processes if one.ended is not None]
    total = max([report.seconds, *ends])
    found = [_chart("", report, 0.0, total)]
    for record in report.phases:
        over = record.began + record.spent
        if record.phase is Phase.DRAIN and DRAIN_SHARE * total < record.spent < total:
            found.append(_chart("After the drain", report, over, total))
    return tuple(found)


def _chart(title: str, report: ShutdownReport, begin: float, end: float) -> Chart:
    window = _Window(begin, end)
    return Chart(
        title,
        begin,
        end,
        tuple(_phases(report, window)),
        tuple(_processes(report, window)),
    )


@dataclass(frozen=True, slots=True)
class _Window:
    """Places spans of time on an axis."""

    begin: float
    end: float

    def place(self, begin: float, end: float) -> tuple[float, float]:
        """Left edge and width in percent of what of a span lies within."""
        length = self.end - self.begin
        if length < SHORTEST:
            return 0.0, 0.0
        first, last = (
            min(max(0.0, (moment - self.begin) / length), 1.0)
            for moment in (begin, end)
        )
        return 100 * first, 100 * (last - first)


def _phases(report: ShutdownReport, window: _Window) -> Iterator[Bar]:
    for record in report.phases:
        over = record.began + record.spent
        # What was over when the window opens is no part of it.
        if window.begin and (over <= window.begin or record.phase is Phase.DRAIN):
            continue
        left, width = window.place(record.began, over)
        skipped = record.outcome is Outcome.SKIPPED
        yield Bar(
            record.phase,
            record.outcome,
            left,
            0.0 if skipped else width,
            "skipped" if skipped else span(record.spent),
            _title(record),
        )


def _title(record: PhaseRecord) -> str:
    words = f"{record.phase} {record.outcome}"
    if record.outcome is Outcome.SKIPPED:
        return words
    words += f": began at {span(record.began)}, took {span(record.spent)}"
    return f"{words} of at most {span(record.requested)}" if record.requested else words


def _processes(report: ShutdownReport, window: _Window) -> Iterator[Bar]:
    for process in report.processes:
        over, kind = process.ended, _kind(process)
        if process.exitcode is None:
            over = window.end
        if over is None or (window.begin and over <= window.begin):
            continue
        left, width = window.place(0.0, over)
        took = "alive" if process.exitcode is None else span(over - window.begin)
        yield Bar(process.name, kind, left, width, took, str(process))


def _kind(process: ProcessEnd) -> str:
    if process.exitcode is None:
        return "alive"
    return "left" if process.clean else "broken"


def round_step(least: float) -> float:
    """The next number from ``least`` up that is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(
        (f * power for f in (1, 2, 5) if f * power >= least * 0.999999), 10 * power
    )
