"""Starts a real server again and again, stops it under load, and checks every stop.

    python benchmarks/stops.py --runs 20                # abort, the default of vLLM
    python benchmarks/stops.py --runs 5 --timeout 30    # drain
    python benchmarks/stops.py --runs 10 --stock        # vLLM without the plugin

Each run is a new server with the tests' tiny model. The exit code is 1 if a run broke
a promise: a hang, an exit code, a stream without its proper end, an error line, or
something left behind. A campaign of stock vLLM is judged the same way but exits with 0:
it promised nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

# The harness is the tests' own, and neither need be installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vllm"))

from tests.clients import LONG, TYPED, WHOLE, Clients
from tests.server import Server

HANG_SECONDS = 15.0
"""After its drain time: what has not left by then hangs, and is killed."""

DRAIN_TOKENS = 1000
"""Of each stream where the server drains: some seconds."""


@dataclass(frozen=True, slots=True)
class Run:
    """One start and stop.

    Attributes:
        code: The exit code; None for a hang.
        seconds: From the signal to the exit.
        after_last_byte: From the last byte of the last stream to the exit.
        ends: How the streams ended, and how many so.
        error_lines: Of the log.
        leftovers: Processes, shared memory, temporary files, the port.
        broken: The promises that it broke.
    """

    code: int | None
    seconds: float
    after_last_byte: float
    ends: dict[str, int]
    error_lines: list[str]
    leftovers: list[str]
    broken: list[str]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the campaign; gives the exit code."""
    arguments = build_parser().parse_args(argv)
    console = Console()
    runs: list[Run] = []
    for number in range(1, arguments.runs + 1):
        with console.status(f"run {number} of {arguments.runs}"):
            run = stop_once(arguments.streams, arguments.timeout, arguments.stock)
        runs.append(run)
        verdict = "; ".join(run.broken) or "every promise kept"
        console.print(
            f"run {number}/{arguments.runs}: {run.seconds:.3f} s, {verdict}",
            highlight=False,
        )
    mode = f"drain of {arguments.timeout} s" if arguments.timeout else "abort"
    who = "stock vLLM" if arguments.stock else "vllm-ashutdown"
    console.print(table_of(runs, f"{who}, {mode}, {arguments.streams} streams"))
    console.print(summary_of(runs), highlight=False)
    if arguments.json:
        rows = [dataclasses.asdict(run) for run in runs]
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    return int(any(run.broken for run in runs) and not arguments.stock)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Stop a real server under load, again and again, and check each.",
        epilog="Exit code: 0 if every promise held (or with --stock), else 1.",
    )
    parser.add_argument("--runs", type=_count, default=20, help="default: 20")
    parser.add_argument(
        "--streams", type=_count, default=8, help="in flight at the signal; default: 8"
    )
    parser.add_argument(
        "--timeout",
        type=int,
        default=0,
        metavar="SECONDS",
        help="vLLM's --shutdown-timeout: 0 (the default) aborts, more drains",
    )
    parser.add_argument(
        "--stock", action="store_true", help="with the plugin switched off"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every run there as well"
    )
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("give 1 or more")
    return number


def stop_once(streams: int, timeout: int, stock: bool) -> Run:
    """One server: started, loaded, signalled, looked after."""
    environment = {"VLLM_ASHUTDOWN": "0"} if stock else {}
    starts = [100 * number % 1000 for number in range(streams)]
    tokens = DRAIN_TOKENS if timeout else LONG
    with (
        tempfile.TemporaryDirectory(prefix="stops-") as directory,
        Server(
            Path(directory),
            *("--shutdown-timeout", str(timeout)),
            environment=environment,
        ) as server,
        Clients(server.address) as clients,
    ):
        calls = [
            clients.raw_stream("/v1/completions", start=start, tokens=tokens)
            for start in starts
        ]
        with clients.flowing(*calls) as answers:
            server.signal(signal.SIGTERM)
            end = server.wait(timeout + HANG_SECONDS)
        ends = Counter(answer.end for answer in answers)
        proper = WHOLE if timeout else TYPED
        broken = []
        if end.hung:
            broken.append("hung")
        elif end.code != 0:
            broken.append(f"exit code {end.code}")
        if ends[proper] != streams:
            broken.append(f"{streams - ends[proper]} streams without a proper end")
        if server.error_lines():
            broken.append(f"{len(server.error_lines())} error lines")
        leftovers = server.leftovers()
        if leftovers:
            broken.append(f"{len(leftovers)} things left behind")
        return Run(
            code=end.code,
            seconds=end.seconds,
            after_last_byte=end.at - max(answer.last_byte_at for answer in answers),
            ends=dict(ends),
            error_lines=server.error_lines(),
            leftovers=leftovers,
            broken=broken,
        )


def table_of(runs: Sequence[Run], title: str) -> Table:
    """All runs, one a row."""
    table = Table(title=title)
    for heading in ("run", "exit", "seconds", "after last byte"):
        table.add_column(heading, justify="right")
    table.add_column("streams")
    for heading in ("error lines", "left behind"):
        table.add_column(heading, justify="right")
    for number, run in enumerate(runs, 1):
        table.add_row(
            str(number),
            "hung" if run.code is None else str(run.code),
            f"{run.seconds:.3f}",
            f"{run.after_last_byte:.3f}",
            ", ".join(f"{count} {end[:60]}" for end, count in run.ends.items()),
            str(len(run.error_lines)),
            str(len(run.leftovers)),
        )
    return table


def summary_of(runs: Sequence[Run]) -> str:
    """The figures to quote: hangs are counted, and left out of the times."""
    left = [run for run in runs if run.code is not None]
    kept = sum(not run.broken for run in runs)
    lines = [f"{kept} of {len(runs)} runs kept every promise"]
    hung = len(runs) - len(left)
    if hung:
        lines.append(f"{hung} hung")
    for name in ("seconds", "after_last_byte"):
        figures = [getattr(run, name) for run in left]
        if figures:
            median, worst = statistics.median(figures), max(figures)
            label = {"seconds": "signal to exit"}.get(name, "last byte to exit")
            lines.append(f"{label}: median {median:.3f} s, worst {worst:.3f} s")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
