"""What an audit has seen, for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from ..audit.run import Run
from ..audit.streams import End
from ..audit.traces import Row
from .render import render
from .screen import COLOURS, Screen, check_table
from .words import printable, span

__all__ = ["LOG_LINES", "last_word", "name_of", "show", "side_by_side"]

LOG_LINES = 15
"""Of its log, where something went wrong."""


def name_of(stock: bool) -> str:
    """Whose stop it is."""
    return "stock vLLM" if stock else "with vllm-ashutdown"


def show(one: Run, screen: Screen) -> None:
    """Everything that was seen in one run."""
    if one.ready_after is not None:
        screen.say(f"It was ready {span(one.ready_after)} after its start.")
    screen.say(f"{one.plan.words}.", _times(one), "")
    if one.report is not None:
        screen.say(render(one.report), "")
    if one.streams:
        screen.say(Text("What its clients saw", "bold"), _streams(one), "")
    screen.say(Text("What the machine had of it", "bold"), _rows(one), "")
    screen.say(Text("What became of the promises", "bold"), check_table(one.checks))
    if one.reclaimed:
        screen.say(f"   The next start takes away {len(one.reclaimed)} things it left.")
    if any(row.after for row in one.rows):
        screen.say("   The audit has taken away what it left behind.")
    verdict = "Clean" if one.clean else "NOT CLEAN"
    words = f"\n{verdict}: {_kept(one)} promises kept"
    screen.say(Text(words, "bold green" if one.clean else "bold red"))
    if not one.clean:
        screen.say("", Text("The last lines of its log", "bold"))
        for line in one.lines[-LOG_LINES:]:
            screen.say(Text("  " + printable(line), "dim"))


def _times(one: Run) -> str:
    """When things were over, as far as they were."""
    times = one.times
    moments = {
        "last stream over": times.last_stream,
        "exit": times.exit,
        "last process gone": times.gone,
    }
    said = [
        f"{what} after {span(at)}" for what, at in moments.items() if at is not None
    ]
    words = ", ".join(said) or "nothing was over in time"
    return f"From then on: {words}."


def _streams(one: Run) -> Table:
    """One line for each kind of end, with how many had it."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("streams", justify="right", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("end", overflow="fold")
    table.add_column("what was said", overflow="fold", min_width=18)
    alike: dict[tuple[str, str], list[int]] = {}
    for stream in one.streams:
        alike.setdefault((stream.words, stream.error), []).append(stream.tokens)
    ends = {stream.words: stream.end for stream in one.streams}
    for (words, error), tokens in alike.items():
        least, most = min(tokens), max(tokens)
        table.add_row(
            str(len(tokens)),
            str(least) if least == most else f"{least} to {most}",
            Text(words, COLOURS[ends[words]]),
            printable(error),
        )
    return table


def _rows(one: Run) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("kind")
    for name in ("before its start", "at the stop", "after it"):
        table.add_column(name, justify="right")
    table.add_column("left", overflow="fold")
    for row in one.rows:
        left = "\n".join(map(printable, row.after))
        counts = map(str, map(len, (row.before, row.during, row.after)))
        table.add_row(row.name, *counts, Text(left, "red"))
    return table


def side_by_side(runs: Sequence[Run]) -> Table:
    """What each run has come to, a column each."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("", style="dim", no_wrap=True)
    for one in runs:
        table.add_column(name_of(one.stock), overflow="fold")

    def line(name: str, say: Callable[[Run], Text]) -> None:
        table.add_row(name, *map(say, runs))

    line("verdict", _verdict)
    line("exit code", _code)
    for end in End:
        counts = [sum(one.end is end for one in run.streams) for run in runs]
        if any(counts):
            style = "" if end.is_honest else COLOURS[end]
            said = [Text(str(count), style if count else "") for count in counts]
            table.add_row(f"streams {end}", *said)
    line("last stream over after", lambda one: _at(one.times.last_stream))
    line("exit after", lambda one: _at(one.times.exit))
    line("last process gone after", lambda one: _at(one.times.gone))
    for number, row in enumerate(runs[0].rows):
        table.add_row(f"{row.name} left", *(_count(run.rows[number]) for run in runs))
    return table


def last_word(runs: Sequence[Run]) -> str:
    """What a comparison comes to, and what it does not compare."""
    kept = " and ".join(f"{_kept(one)} {name_of(one.stock)}" for one in runs)
    words = f"\nPromises of a good stop that were kept: {kept}."
    if all(one.ready_after is not None for one in runs):
        words += (
            "\nHow soon they were ready is not compared: the first start has also "
            "brought vLLM's files into memory, for both."
        )
    return words


def _kept(one: Run) -> str:
    return f"{sum(check.kept for check in one.checks)} of {len(one.checks)}"


def _verdict(one: Run) -> Text:
    return Text("clean", "green") if one.clean else Text("NOT CLEAN", "red")


def _code(one: Run) -> Text:
    if one.exit_code is None:
        return Text("hung, killed", "red")
    return Text(str(one.exit_code))


def _at(moment: float | None) -> Text:
    return Text("never", "red") if moment is None else Text(span(moment))


def _count(row: Row) -> Text:
    return Text(str(len(row.after)), "red" if row.after else "")
