"""Signals a real server at instants spread over its whole life, and checks every end.

    python benchmarks/instants.py --runs 100             # one SIGTERM each
    python benchmarks/instants.py --runs 30 --signals 3  # two more, 0.2 s apart
    python benchmarks/instants.py --shard 1/2            # and 2/2 beside it
    python benchmarks/instants.py --runs 70 --signals 2 --stand-in  # without vLLM

The first run is let come up, to know how long that takes; the others are signalled
at instants spread evenly from the start of the process to a second after it is ready.
Of ten, one is signalled in its teardown: once more, that is, since it was told to stop.
The exit code is 1 if a run was not over within 2 s of its signal, or within 1 s of the
last one where there are more, left something behind, wrote an error line, or left with
another code than is documented: 0, or the signal's own before the package is loaded.
"""

from __future__ import annotations

import argparse
import functools
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

# The harness is the tests' own, and neither need be installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vllm"))

from benchmarks.output import add_json_to, write_json
from benchmarks.shard import Shard
from tests import stand_in
from tests.server import READY, Server
from tests.stand_in import StandIn
from tests.topologies import TOPOLOGIES

TEARDOWN_SECONDS = 0.4
"""Within which the signals into a teardown are spread."""

PROMISED_SECONDS = 2.0
"""From the signal to the exit."""

RAISED_SECONDS = 1.0
"""From the last of several."""

HANG_SECONDS = 15.0
"""What has not left by then hangs, and is killed."""

Make = Callable[..., Server]

_STAGE = re.compile(r"\[shutdown\] .* while (.*): the start ends here")


@dataclass(frozen=True, slots=True)
class Run:
    """One life.

    Attributes:
        instant: Of the first signal, in seconds from the start of the process.
        stage: How far it had come, by its own word.
        code: The exit code; None for a hang.
        seconds: From the last signal to the exit.
        broken: The promises that it broke.
    """

    instant: float
    stage: str
    code: int | None
    seconds: float
    broken: list[str]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the campaign; gives the exit code."""
    arguments = build_parser().parse_args(argv)
    console = Console()
    make = make_server(arguments)
    ready = seconds_to_ready(make)
    console.print(f"ready after {ready:.1f} s", highlight=False)
    runs = []
    for number in arguments.shard.of(arguments.runs):
        first, *more = instants(number, arguments, ready)
        run = signal_once(make, first, more)
        runs.append(run)
        verdict = "; ".join(run.broken) or "every promise kept"
        console.print(
            f"run {number + 1}/{arguments.runs}: at {run.instant:.1f} s, {run.stage}: "
            f"{run.seconds:.3f} s, {verdict}",
            highlight=False,
            soft_wrap=True,
        )
    console.print(table_of(runs))
    kept = sum(not run.broken for run in runs)
    worst = max(run.seconds for run in runs)
    console.print(f"{kept} of {len(runs)} kept every promise; worst {worst:.3f} s")
    write_json(arguments.json, [asdict(run) for run in runs])
    return int(kept < len(runs))


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Signal a real server at any instant of its life, and check it.",
        epilog="Exit code: 0 if every promise held, else 1.",
    )
    parser.add_argument("--runs", type=int, default=100, help="default: 100")
    parser.add_argument(
        "--signals", type=int, default=1, help="how many each gets; default: 1"
    )
    parser.add_argument(
        "--gap",
        type=float,
        default=0.2,
        metavar="SECONDS",
        help="between two signals; default: 0.2",
    )
    parser.add_argument(
        "--topology",
        choices=sorted(TOPOLOGIES),
        help="the server's shape; default: one, or api2 of the stand-ins",
    )
    parser.add_argument(
        "--stand-in",
        action="store_true",
        help="trees of real processes without vLLM in them, which start in a second",
    )
    add_json_to(parser)
    Shard.add_to(parser)
    return parser


def instants(number: int, arguments: argparse.Namespace, ready: float) -> list[float]:
    """When run ``number`` is signalled: once it is begun, then since the signal before.

    Every tenth is signalled in the teardown, the others before or while they serve.
    """
    tenth, rest = divmod(number, 10)
    more = [arguments.gap] * (arguments.signals - 1)
    if rest == 9:
        into = TEARDOWN_SECONDS * (tenth + 0.5) / max(1, arguments.runs // 10)
        return [ready + 1, into, *more]
    return [(ready + 1) * (number + 0.5) / arguments.runs, *more]


def make_server(arguments: argparse.Namespace) -> Make:
    """What begins a server of that shape, and does not wait for it."""
    kind: type[Server] = StandIn if arguments.stand_in else Server
    shapes = stand_in.SHAPES if arguments.stand_in else TOPOLOGIES
    name = arguments.topology or next(iter(shapes))
    if name not in shapes:
        raise SystemExit(f"there is no stand-in of shape {name}: {', '.join(shapes)}")
    return functools.partial(kind, topology=shapes[name], until_ready=False)


def seconds_to_ready(make: Make) -> float:
    """How long a server takes to come up here."""
    with tempfile.TemporaryDirectory(prefix="instants-") as directory:
        began = time.monotonic()
        with make(Path(directory), until_ready=True) as server:
            line = server.wait_for(READY, 0)
            assert line is not None
            return line.at - began


def signal_once(make: Make, instant: float, gaps: Sequence[float]) -> Run:
    """One server: begun, signalled at ``instant`` and after each gap, looked after."""
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="instants-") as directory,
        make(Path(directory)) as server,
    ):
        time.sleep(max(0.0, began + instant - time.monotonic()))
        server.watch.look()
        at = server.signal(signal.SIGTERM)
        for gap in gaps:
            time.sleep(gap)
            if server.process.poll() is None:
                at = server.signal(signal.SIGTERM)
        end = server.wait(HANG_SECONDS)
        seconds = end.at - at
        promised = RAISED_SECONDS if gaps else PROMISED_SECONDS
        return Run(
            instant=instant,
            stage=stage_of(server),
            code=end.code,
            seconds=seconds,
            broken=broken_by(server, end.code, seconds, promised),
        )


def stage_of(server: Server) -> str:
    """How far it had come when it was signalled, by its own word."""
    found = _STAGE.search(server.log)
    if found is not None:
        return found[1]
    return "serving" if "[shutdown]" in server.log else "before the package is loaded"


def broken_by(
    server: Server, code: int | None, seconds: float, promised: float
) -> list[str]:
    """The promises that it broke."""
    broken = []
    if code is None:
        broken.append("hung")
    elif code != 0 and (code != -signal.SIGTERM or "[shutdown]" in server.log):
        broken.append(f"exit code {code}")
    if code is not None and seconds > promised:
        broken.append(f"took {seconds:.1f} s")
    return broken + server.error_lines()[:3] + server.leftovers()


def table_of(runs: Sequence[Run]) -> Table:
    """By stage: how many, how long, and what was broken."""
    table = Table(title="signals at any instant")
    for heading in ("signalled while", "runs", "worst seconds", "broken"):
        table.add_column(heading, justify="left" if "while" in heading else "right")
    for stage in dict.fromkeys(run.stage for run in runs):
        those = [run for run in runs if run.stage == stage]
        worst = max(run.seconds for run in those)
        broken = sum(bool(run.broken) for run in those)
        table.add_row(stage, str(len(those)), f"{worst:.3f}", str(broken))
    return table


if __name__ == "__main__":
    sys.exit(main())
