"""A shutdown report as a picture: its timeline, and what came of everything.

For terminals of 80 columns and more, and for files: without colour and with ASCII
alone it says the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ..core.phase import Outcome, PhaseRecord
from ..core.report import ProcessEnd, ShutdownReport
from . import words
from .words import span

__all__ = ["WIDTH", "render"]

WIDTH = 100
"""A report never gets wider, however wide the terminal is: lines stay readable."""

_COLOURS = {
    Outcome.DONE: "green",
    Outcome.SKIPPED: "bright_black",
    Outcome.EXPIRED: "yellow",
    Outcome.RAISED: "yellow",
    Outcome.FAILED: "red",
}


def render(report: ShutdownReport) -> RenderableType:
    """The whole report, at most :data:`WIDTH` columns wide."""
    return _Picture(report)


@dataclass(frozen=True, slots=True)
class _Picture:
    """The report, drawn for the console that it meets: its width, its characters."""

    report: ShutdownReport

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        options = options.update(width=min(WIDTH, options.max_width))
        report, plain = self.report, options.ascii_only
        parts = (
            _title(report, plain),
            _timeline(report, plain),
            _results(report, plain),
        )
        for number, part in enumerate(parts):
            if number:
                yield Segment.line()
            yield from console.render(part, options)


def _readable(text: str, plain: bool) -> str:
    line = words.printable(text)
    return line.encode("ascii", "backslashreplace").decode() if plain else line


def _span(seconds: float, plain: bool) -> str:
    return span(seconds).replace("µ", "u") if plain else span(seconds)


def _title(report: ShutdownReport, plain: bool) -> RenderableType:
    clean = Text("clean", "bold green") if report.clean else Text("NOT CLEAN", "red")
    title = Text.assemble(
        (_readable(f"Stop by {report.trigger}", plain), "bold"),
        f"   mode {words.mode(report)}   {_span(report.seconds, plain)}   ",
        clean,
    )
    title.overflow = "fold"
    return title


# -- the timeline ---------------------------------------------------------------


def _timeline(report: ShutdownReport, plain: bool) -> RenderableType:
    total = max([report.seconds, *(one.began + one.spent for one in report.phases)])
    table = Table(
        box=None, padding=(0, 1, 0, 0), expand=True, width=None, header_style="dim"
    )
    table.add_column("phase", no_wrap=True)
    table.add_column(_Axis(_span(total, plain)), ratio=5, min_width=20)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("of at most", justify="right", no_wrap=True)
    table.add_column("", ratio=4, min_width=16)
    for record in report.phases:
        skipped = record.outcome is Outcome.SKIPPED
        table.add_row(
            Text(record.phase, "dim" if skipped else ""),
            "" if skipped else _Bar(record.began, record, total),
            "" if skipped else Text(_span(record.spent, plain), "bold"),
            Text(_span(record.requested, plain) if record.requested else "", "dim"),
            _words(record, plain),
        )
    return table


def _words(record: PhaseRecord, plain: bool) -> Text:
    done = record.outcome is Outcome.DONE
    outcome = "" if done else words.OUTCOMES[record.outcome]
    text = Text(outcome, _COLOURS[record.outcome])
    if record.detail:
        text.append(": " if outcome else "")
        text.append(_readable(record.detail, plain), "none")
    # What went wrong is wanted whole; of everything else one line will do.
    failed = record.outcome is Outcome.FAILED
    text.no_wrap, text.overflow = not failed, "fold" if failed else "ellipsis"
    if plain and not failed:
        text.overflow = "crop"  # rich's ellipsis is no ASCII
    return text


@dataclass(frozen=True, slots=True)
class _Axis:
    """The head of the timeline: from nothing to the end."""

    end: str

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        begin, end = "0", self.end
        room = options.max_width - len(begin) - len(end)
        yield Text(begin + " " * max(1, room) + end, "dim", no_wrap=True)

    def __rich_measure__(
        self, console: Console, options: ConsoleOptions
    ) -> Measurement:
        return Measurement(12, options.max_width)


@dataclass(frozen=True, slots=True)
class _Bar:
    """One phase on the common axis; however short it was, there is a mark."""

    start: float
    record: PhaseRecord
    total: float

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        width = options.max_width
        before, bar = self.cells(width, ascii_only=options.ascii_only)
        yield Segment(" " * before)
        yield Segment(bar, Style.parse(_COLOURS[self.record.outcome]))
        yield Segment(" " * (width - before - len(bar)))
        yield Segment.line()

    def __rich_measure__(
        self, console: Console, options: ConsoleOptions
    ) -> Measurement:
        return Measurement(12, options.max_width)

    def cells(self, width: int, *, ascii_only: bool) -> tuple[int, str]:
        """Empty cells before the bar, and the bar."""
        per_second = width / self.total if self.total > 0 else 0.0
        before = min(width - 1, int(self.start * per_second))
        whole = self.record.spent * per_second
        full = min(width - before, round(whole))
        if full:
            return before, ("=" if ascii_only else "█") * full
        return before, "|" if ascii_only else "▏"


# -- what came of everything ----------------------------------------------------


def _results(report: ShutdownReport, plain: bool) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    counts = report.requests
    grid.add_row(
        "requests",
        f"{counts.completed} completed, {counts.aborted} ended, "
        f"{counts.refused} refused",
    )
    for i, process in enumerate(report.processes):
        grid.add_row(
            "" if i else "processes",
            Text(_end(process, plain), "" if process.clean else "red"),
        )
    held = [row for row in report.inventory if row.before or row.after]
    for i, row in enumerate(held):
        grid.add_row(
            "" if i else "given back",
            Text(
                f"{row.name}: {len(row.before)} held, {len(row.after)} now"
                + (", which may stay" if row.after and not row.leftovers else ""),
                "red" if row.leftovers else "",
            ),
        )
    for i, line in enumerate(report.leftovers):
        grid.add_row("" if i else "left behind", Text(_readable(line, plain), "red"))
    if not report.leftovers:
        grid.add_row("left behind", "nothing")
    return grid


def _end(process: ProcessEnd, plain: bool) -> str:
    when = "" if process.ended is None else f", after {_span(process.ended, plain)}"
    return _readable(str(process), plain) + when
