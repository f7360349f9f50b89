"""Stops real servers under load, stock's and ours in turns, and sets them side by side.

    python benchmarks/stops.py                   # all of it: hours
    python benchmarks/stops.py --shapes one --streams 8 --modes abort --rounds 20
    python benchmarks/stops.py --floor           # and how fast they can end at all
    python benchmarks/stops.py --only ours       # without stock's beside it

A round starts a server of stock and one of ours for each case, with the same model and
the same load, in turns who comes first. A case is a shape, the streams in flight, and a
mode: abort, vLLM's default, or drain. With ``--floor`` a round also kills one server of
each shape and load at once, and times it until the last of its processes is over:
nothing ends faster.

Every stop is judged: a hang, an exit code, a stream without its proper end, an error
line, something left behind. The exit code is 1 if one of ours broke a promise; stock
promised nothing. What is promised of times is held against them below the table, and
is no part of the exit code: other programs on the machine have a say in it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

# The harness is the tests' own, and neither need be installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vllm"))

from benchmarks.figures import FEWEST
from benchmarks.output import add_json_to, count, table_of, write_json
from benchmarks.shard import Shard
from benchmarks.trial import (
    ARMS,
    DRAIN,
    FLOOR,
    MODES,
    OURS,
    SHAPES,
    STOCK,
    Case,
    Trial,
    attempt,
)
from benchmarks.verdicts import cases_of, times_of, verdicts

STREAMS = (0, 1, 8, 64)
DRAIN_SECONDS = 30

Step = tuple[int, Case, str]
"""A round, a case of it, and who ends that server."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the campaign; gives the exit code."""
    arguments = build_parser().parse_args(argv)
    console = Console()
    steps = list(plan(arguments))
    trials: list[Trial] = []
    try:
        for number, (turn, case, arm) in enumerate(steps, 1):
            where = f"{number}/{len(steps)}, round {turn}: {case}, {arm}"
            with console.status(where):
                trial = attempt(case, arm, turn, arguments.timeout)
            trials.append(trial)
            console.print(f"{where}: {line_of(trial)}", highlight=False, soft_wrap=True)
            # Each time, so that a campaign which is cut short has not been for nothing.
            write_json(arguments.json, [one.to_json() for one in trials])
    except KeyboardInterrupt:
        console.print(f"interrupted after {len(trials)} of {len(steps)}")
    if trials:
        console.print(times_table(trials))
        console.print(ends_table(trials))
        for verdict in verdicts(trials):
            style = "red" if verdict.kept is False else ""
            console.print(str(verdict), style=style, highlight=False, soft_wrap=True)
        ours = [trial for trial in trials if trial.arm == OURS]
        kept = sum(not trial.broken for trial in ours)
        console.print(f"{kept} of {len(ours)} stops of ours kept every promise")
    broken = any(trial.broken for trial in trials if trial.arm != STOCK)
    return int(broken or len(trials) < len(steps))


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Stop real servers under load, stock's and ours side by side.",
        epilog="Exit code: 0 if every promise of ours held, else 1.",
    )
    parser.add_argument(
        "--shapes",
        nargs="+",
        choices=SHAPES,
        default=list(SHAPES),
        metavar="SHAPE",
        help=f"of {', '.join(SHAPES)}; default: all",
    )
    parser.add_argument(
        "--streams",
        nargs="+",
        type=_streams,
        default=list(STREAMS),
        metavar="N",
        help=f"in flight at the signal; default: {' '.join(map(str, STREAMS))}",
    )
    parser.add_argument(
        "--modes",
        nargs="+",
        choices=MODES,
        default=list(MODES),
        metavar="MODE",
        help=f"of {', '.join(MODES)}; default: both",
    )
    parser.add_argument(
        "--rounds",
        type=count,
        default=FEWEST,
        help=f"of all cases; default: {FEWEST}",
    )
    parser.add_argument(
        "--only", choices=[STOCK, OURS], help="that one, with nothing beside it"
    )
    parser.add_argument(
        "--floor",
        action="store_true",
        help="also kill servers at once: how fast they can end at all",
    )
    parser.add_argument(
        "--timeout",
        type=count,
        default=DRAIN_SECONDS,
        metavar="SECONDS",
        help=f"of a drain, vLLM's --shutdown-timeout; default: {DRAIN_SECONDS}",
    )
    add_json_to(parser)
    Shard.add_to(parser)
    return parser


def _streams(text: str) -> int:
    return 0 if text == "0" else count(text)


def plan(arguments: argparse.Namespace) -> Iterator[Step]:
    """Every server of the campaign, or of its part, in order.

    A case's arms stand beside each other, and in each round another one is the first.
    """
    cases = [
        Case(shape, mode, streams)
        for shape in arguments.shapes
        for streams in arguments.streams
        for mode in arguments.modes
    ]
    arms = [arguments.only] if arguments.only else [STOCK, OURS]
    for number in arguments.shard.of(arguments.rounds * len(cases)):
        turn, index = divmod(number, len(cases))
        case = cases[index]
        # A kill knows no mode: it is done once for all of them.
        floored = arguments.floor and case.mode == arguments.modes[0]
        own = [*arms, *([FLOOR] * floored)]
        first = (turn + index) % len(own)
        for arm in own[first:] + own[:first]:
            yield turn + 1, case, arm


def line_of(trial: Trial) -> str:
    """What one trial has shown."""
    verdict = "; ".join(trial.broken) or "as promised"
    if trial.arm == FLOOR:
        verdict = "; ".join(trial.broken) or "killed"
    return f"{trial.seconds:.3f} s, {verdict}"


def times_table(trials: Sequence[Trial]) -> Table:
    """A row a case: how long each arm took."""
    headings = ["seconds to the exit", "stock", "worst", "ours", "worst", "floor"]
    drains = any(trial.case.mode == DRAIN for trial in trials)
    if drains:
        headings += ["stock after last byte", "ours after last byte"]
    rows = []
    for case in cases_of(trials):
        row = [str(case)]
        for arm in ARMS:
            seconds = times_of(trials, case, arm)
            row.append(_median(seconds))
            if arm != FLOOR:
                row.append(f"{max(seconds):.3f}" if seconds else "-")
        if drains:
            after = case.mode == DRAIN
            row += [
                _median(times_of(trials, case, arm, "after_last_byte"))
                if after
                else "-"
                for arm in (STOCK, OURS)
            ]
        rows.append(row)
    return table_of("stops: times, medians unless said otherwise", headings, rows)


def _median(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.3f}" if seconds else "-"


def ends_table(trials: Sequence[Trial]) -> Table:
    """A row a case: what became of the servers and the streams of each arm."""
    headings = ["all runs together"]
    for arm in (STOCK, OURS):
        headings += [f"{arm}: hung", "streams", "error lines", "left behind"]
    rows = []
    for case in cases_of(trials):
        row = [str(case)]
        for arm in (STOCK, OURS):
            own = [one for one in trials if one.case == case and one.arm == arm]
            stops = [one for one in own if not one.failed]
            row += [
                f"{sum(one.hung for one in stops)} of {len(stops)}",
                streams_of(stops),
                str(sum(len(one.error_lines) for one in stops)),
                str(sum(len(one.leftovers) for one in stops)),
            ]
        rows.append(row)
    return table_of("stops: what became of them", headings, rows)


def streams_of(trials: Sequence[Trial]) -> str:
    """How their streams ended, and how many so."""
    ends: Counter[str] = Counter()
    for trial in trials:
        ends.update(trial.ends)
    return ", ".join(f"{number} {end}" for end, number in ends.most_common()) or "-"


if __name__ == "__main__":
    sys.exit(main())
