"""``vllm-ashutdown audit``: a server is stopped under load and looked at."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rich.table import Table
from rich.text import Text

from ..audit.address import Address, CommandError, options_of
from ..audit.plan import How, Plan, Whom
from ..audit.run import Run, audit
from ..audit.server import ServerFailedError
from ..audit.traces import Row
from .render import render
from .screen import COLOURS, Screen, check_table
from .words import printable, span

EXIT_BROKEN, EXIT_INTERRUPTED = 1, 130
LOG_LINES = 15


def run(arguments: argparse.Namespace) -> int:
    """Does it and shows it.

    Returns:
        0 if all was as promised, 1 if not or if the server did not come up, 2 for a
        command that cannot be understood, 130 if it was interrupted.
    """
    from .main import fail

    command = list(arguments.server)
    if command[:1] == ["--"]:
        del command[0]
    if not command:
        return fail(
            "the server's command is missing: vllm-ashutdown audit [options] -- "
            "vllm-ashutdown serve MODEL"
        )
    try:
        options = options_of(command, os.environ)
    except CommandError as error:
        return fail(str(error))
    plan = Plan(
        command=command,
        drain=options.drain,
        how=How(arguments.stop),
        whom=Whom(arguments.target),
        streams=arguments.streams,
        tokens=arguments.tokens,
        after=arguments.after,
        at=arguments.at,
        limit=arguments.limit,
        start_limit=arguments.start_limit,
    )
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A server may say what the terminal's encoding has not.
        sys.stdout.reconfigure(errors="replace")
    screen = Screen()
    kinds = [True, False] if arguments.compare else [arguments.stock]
    runs: list[Run] = []
    try:
        with _interruptible():
            for stock in kinds:
                screen.heading(_name(stock))
                runs.append(_one(plan, options.address, screen, stock=stock))
                _show(runs[-1], screen)
    except ServerFailedError as error:
        for line in error.lines[-LOG_LINES:]:
            print(f"  {printable(line)}", file=sys.stderr)
        print(f"vllm-ashutdown: the server failed: {error}", file=sys.stderr)
        return EXIT_BROKEN
    except KeyboardInterrupt:
        print("\nInterrupted; the server is gone.", file=sys.stderr)
        return EXIT_INTERRUPTED
    if arguments.compare:
        screen.heading("Side by side")
        screen.say(side_by_side(runs))
    if arguments.json is not None:
        try:
            Path(arguments.json).write_text(_json(runs), encoding="utf-8")
        except OSError as error:
            return fail(f"cannot write {arguments.json}: {error.strerror}")
    return 0 if runs[-1].clean else EXIT_BROKEN


def _one(plan: Plan, address: Address, screen: Screen, *, stock: bool) -> Run:
    with tempfile.TemporaryDirectory(
        prefix="audit-", ignore_cleanup_errors=True
    ) as scratch:
        directory = Path(scratch) / "tmp"
        directory.mkdir()
        return audit(plan, address, directory, screen, stock=stock)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Lets a SIGTERM end it like Ctrl-C: no server may be left behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# -- what is shown -----------------------------------------------------------------


def _name(stock: bool) -> str:
    return "stock vLLM" if stock else "with vllm-ashutdown"


def _show(one: Run, screen: Screen) -> None:
    if one.ready_after is not None:
        screen.say(f"It served {span(one.ready_after)} after its start.")
    screen.say(f"{one.plan.words}. {_times(one)}", "")
    if one.report is not None:
        screen.say(render(one.report), "")
    if one.streams:
        screen.say(Text("What its clients saw", "bold"), _streams(one), "")
    screen.say(Text("What the machine had of it", "bold"), _rows(one), "")
    screen.say(Text("What became of the promises", "bold"), check_table(one.checks))
    if one.reclaimed:
        screen.say(f"   The next start takes away {len(one.reclaimed)} things it left.")
    kept = sum(check.kept for check in one.checks)
    verdict = "Clean" if one.clean else "NOT CLEAN"
    words = f"\n{verdict}: {kept} of {len(one.checks)} promises kept"
    screen.say(Text(words, "bold green" if one.clean else "bold red"))
    if not one.clean:
        screen.say("", Text("The last lines of its log", "bold"))
        for line in one.lines[-LOG_LINES:]:
            screen.say(Text("  " + printable(line), "dim"))


def _times(one: Run) -> str:
    """When things were over, as far as they were."""
    times = one.times
    moments = {
        "the last stream was over": times.last_stream,
        "it left": times.exit,
        "its last process was gone": times.gone,
    }
    said = [
        f"{what} after {span(at)}" for what, at in moments.items() if at is not None
    ]
    words = ", ".join(said) or "nothing was over in time"
    return f"{words[0].upper()}{words[1:]}."


def _streams(one: Run) -> Table:
    """One line for each kind of end, with how many had it."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("streams", justify="right")
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("end", no_wrap=True)
    table.add_column("what was said", overflow="fold")
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
    for name in ("before", "during", "after"):
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
        table.add_column(_name(one.stock), overflow="fold")
    lines = [_lines(one) for one in runs]
    for name in dict.fromkeys(name for one in lines for name in one):
        table.add_row(name, *(one.get(name, Text("")) for one in lines))
    return table


def _lines(one: Run) -> dict[str, Text]:
    def at(moment: float | None, otherwise: str = "never") -> Text:
        return Text(otherwise, "red") if moment is None else Text(span(moment))

    hung = one.exit_code is None
    lines = {
        "verdict": Text("clean", "green") if one.clean else Text("NOT CLEAN", "red"),
        "exit code": Text("hung, killed", "red") if hung else Text(str(one.exit_code)),
    }
    if one.streams:
        lines["last stream over after"] = at(one.times.last_stream)
    lines["exit after"] = at(one.times.exit)
    lines["last process gone after"] = at(one.times.gone)
    for stream in one.streams:
        lines.setdefault(f"streams {stream.end}", Text("0")).plain = str(
            sum(other.end is stream.end for other in one.streams)
        )
    lines |= {f"{row.name} left": _count(row) for row in one.rows}
    return lines


def _count(row: Row) -> Text:
    return Text(str(len(row.after)), "red" if row.after else "")


def _json(runs: Sequence[Run]) -> str:
    return json.dumps([_plain(one) for one in runs], indent=2) + "\n"


def _plain(one: Run) -> dict[str, Any]:
    plan = one.plan
    return {
        "stock": one.stock,
        "clean": one.clean,
        "command": list(plan.command),
        "stop": {
            "how": plan.how,
            "whom": plan.whom,
            "after": plan.after,
            "at": plan.at,
            "limit": plan.most,
        },
        "ready_after": one.ready_after,
        "exit_code": one.exit_code,
        "hung": one.exit_code is None,
        "times": dataclasses.asdict(one.times),
        "streams": [
            {
                "end": stream.end,
                "words": stream.words,
                "tokens": stream.tokens,
                "retryable": stream.retryable,
                "error": stream.error,
            }
            for stream in one.streams
        ],
        "rows": [dataclasses.asdict(row) for row in one.rows],
        "reclaimed": list(one.reclaimed),
        "checks": [dataclasses.asdict(check) for check in one.checks],
        "report": None if one.report is None else json.loads(one.report.to_json()),
    }
