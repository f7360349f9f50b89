"""Draws faults at random, does them to real servers, and judges what becomes of each.

    python benchmarks/faults.py --runs 60 --seed 7
    python benchmarks/faults.py --seed 7 --only 23       # that one again
    python benchmarks/faults.py --runs 140 --stand-in    # without vLLM, in minutes

A fault is a signal to one process, or to all of them, of a server of some shape, at
some moment: while it starts, serves, drains or stops. The seed and the number draw it,
so that one is repeated by itself; what the machine makes of it is not drawn.

Each server has to be over in time, with no process and no name left; every stream has
to end in a way that its client cannot take for a success which it was not; nobody may
be told of an error where nothing but a stop happened. The exit code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
from tests.clients import CUT, TYPED, WHOLE, Answer, Clients
from tests.server import Server
from tests.stand_in import StandIn
from tests.topologies import TOPOLOGIES, Topology
from vllm_ashutdown import settings
from vllm_ashutdown.core.reclaim import Verdict, reclaim

DRAIN_SECONDS = 5
STOP_SECONDS = 4.0
"""The teardown reserve of every server here."""

MORE_SECONDS = 2.0
"""What the machine may take on top of the budget, for the exits themselves."""

MOMENTS = ("start", "serving", "draining", "stopping")
TOP, GROUP = "the top", "all of them"


@dataclass(frozen=True, slots=True)
class Kind:
    """Of servers.

    Attributes:
        make: What runs one.
        shapes: Its shapes by name.
        drawn: Of which these are drawn.
        start_seconds: Within which the moments of a start are.
        streams: How many requests each has in flight.
    """

    make: type[Server]
    shapes: Mapping[str, Topology]
    drawn: Sequence[str]
    start_seconds: float
    streams: int


REAL = Kind(Server, TOPOLOGIES, ("one", "one", "tp2", "dp2", "api2"), 30.0, 6)
STAND_IN = Kind(StandIn, stand_in.SHAPES, tuple(stand_in.SHAPES), 2.0, 0)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done.

    Attributes:
        shape: Of the server.
        moment: What it is doing.
        after: Seconds into that moment.
        target: The top, all of them, or a kind of process.
        number: The signal.
    """

    shape: str
    moment: str
    after: float
    target: str
    number: signal.Signals

    @classmethod
    def draw(cls, seed: int, number: int, servers: Kind = REAL) -> Fault:
        """The fault of that number."""
        lots = random.Random(f"{seed}/{number}")
        shape, moment = lots.choice(servers.drawn), lots.choice(MOMENTS)
        kinds = [kind for kind in servers.shapes[shape].kinds if kind != "launcher"]
        target = lots.choice([TOP, GROUP, *kinds])
        numbers = [signal.SIGTERM, signal.SIGINT]
        if target != GROUP:
            numbers.append(signal.SIGKILL)
        if target in ("EngineCore", "Worker"):
            numbers.append(signal.SIGSTOP)
        within = {"start": servers.start_seconds, "stopping": 0.4}
        longest = within.get(moment, 1.0)
        return cls(
            shape, moment, lots.uniform(0, longest), target, lots.choice(numbers)
        )

    @property
    def kills(self) -> bool:
        """Whether a process cannot do its part any more."""
        return self.number in (signal.SIGKILL, signal.SIGSTOP)

    def __str__(self) -> str:
        return (
            f"{self.shape}, {self.moment} + {self.after:.2f} s: "
            f"{self.number.name} to {self.target}"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of it.

    Attributes:
        number: Of the fault.
        fault: What it was.
        code: The exit code; None for a hang.
        seconds: From the last signal to the end of the last process.
        broken: What was wrong.
    """

    number: int
    fault: str
    code: int | None
    seconds: float
    broken: list[str]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the campaign; gives the exit code."""
    arguments = build_parser().parse_args(argv)
    console = Console()
    servers = STAND_IN if arguments.stand_in else REAL
    numbers = arguments.shard.of(arguments.runs)
    if arguments.only is not None:
        numbers = range(arguments.only, arguments.only + 1)
    outcomes = []
    for number in numbers:
        fault = Fault.draw(arguments.seed, number, servers)
        try:
            outcome = do(number, fault, servers, arguments.logs)
        except (RuntimeError, AssertionError) as error:
            # It did not start, or its streams did not flow. That is told, and counts,
            # and the others are done all the same.
            why = f"was not done: {str(error).partition(chr(10))[0][:200]}"
            outcome = Outcome(number, str(fault), None, 0.0, [why])
        outcomes.append(outcome)
        verdict = "; ".join(outcome.broken) or "as promised"
        console.print(
            f"{number}: {fault}: {outcome.seconds:.2f} s, {verdict}",
            highlight=False,
            soft_wrap=True,
        )
    console.print(table_of(outcomes, arguments.seed))
    bad = [outcome.number for outcome in outcomes if outcome.broken]
    write_json(arguments.json, [asdict(outcome) for outcome in outcomes])
    if bad:
        again = f"--seed {arguments.seed} --only {bad[0]}"
        again += " --stand-in" * arguments.stand_in
        console.print(f"{len(bad)} of {len(outcomes)} broken; the first again: {again}")
    else:
        console.print(f"{len(outcomes)} of {len(outcomes)} as promised")
    return int(bool(bad))


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Do random faults to real servers and judge what becomes of each.",
        epilog="Exit code: 0 if each was as promised, else 1.",
    )
    parser.add_argument("--runs", type=int, default=60, help="default: 60")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="just this one")
    add_json_to(parser)
    parser.add_argument(
        "--logs", type=Path, metavar="FOLDER", help="keep the logs of broken ones there"
    )
    parser.add_argument(
        "--stand-in",
        action="store_true",
        help="trees of real processes without vLLM in them, which start in a second",
    )
    Shard.add_to(parser)
    return parser


def do(
    number: int, fault: Fault, servers: Kind = REAL, logs: Path | None = None
) -> Outcome:
    """Starts a server, does the fault to it, and judges."""
    began = time.monotonic()
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-"))
        )
        server = stack.enter_context(
            servers.make(
                directory,
                *("--shutdown-timeout", str(drain_of(fault))),
                topology=servers.shapes[fault.shape],
                until_ready=fault.moment != "start",
                environment={
                    settings.TEARDOWN_SECONDS.name: str(STOP_SECONDS),
                    settings.STATE_DIRECTORY.name: str(directory / "lists"),
                },
            )
        )
        with streams(server, fault, servers.streams) as answers:
            if fault.moment == "start":
                time.sleep(max(0.0, began + fault.after - time.monotonic()))
            else:
                if fault.moment != "serving":
                    server.signal(signal.SIGTERM)
                time.sleep(fault.after)
            strike(server, fault)
            longest = drain_of(fault) + STOP_SECONDS + MORE_SECONDS
            seconds, left = server.gone_within(longest)
            end = server.wait(1)
        found = [f"{one} is left" for one in left]
        if end.code is None:
            found.append("hung")
        found += judged(server, fault, end.code, answers, directory / "lists")
        if found and logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
            first = min(server.signalled_at)
            lines = [f"{one.at - first:7.3f} {one.text}\n" for one in server.lines]
            (logs / f"{number}.log").write_text("".join(lines))
        return Outcome(number, str(fault), end.code, seconds, found)


def drain_of(fault: Fault) -> int:
    """What ``--shutdown-timeout`` is for it."""
    return DRAIN_SECONDS if fault.moment == "draining" else 0


@contextmanager
def streams(server: Server, fault: Fault, count: int) -> Iterator[list[Answer]]:
    """Streams in flight, unless it only starts."""
    if fault.moment == "start" or not count:
        yield []
        return
    with Clients(server.address) as clients:
        calls = [
            clients.raw_stream("/v1/completions", start=100 * number)
            for number in range(count)
        ]
        with clients.flowing(*calls) as answers:
            yield answers


def strike(server: Server, fault: Fault) -> None:
    """Does it; where nothing else ends the server, it is asked to stop behind it.

    In place of a process that is not there yet, or no more, the top is signalled. It is
    never halted: nobody is there to end a server that is.
    """
    server.watch.look()
    kinds = server.processes_by_kind()
    over = server.process.poll() is not None
    if fault.target == GROUP and not over:
        server.signal_group(fault.number)
    elif kinds.get(fault.target):
        server.signal_process(kinds[fault.target][0], fault.number)
    elif fault.number != signal.SIGSTOP and not over:
        server.signal(fault.number)
    if fault.number == signal.SIGSTOP and server.process.poll() is None:
        server.signal(signal.SIGTERM)
    if not server.signalled_at:
        server.signalled_at.append(time.monotonic())


def judged(
    server: Server,
    fault: Fault,
    code: int | None,
    answers: Sequence[Answer],
    lists: Path,
) -> list[str]:
    """What was wrong with what became of it."""
    found = []
    if not fault.kills:
        asked_early = fault.moment == "start" and code in (-fault.number, 130)
        if code not in (0, None) and not asked_early:
            found.append(f"exit code {code}")
        # Before the package is loaded it is Python that answers Ctrl-C, and loudly.
        if not asked_early or "[shutdown]" in server.log:
            found += server.error_lines()[:2]
    elif fault.number == signal.SIGKILL and fault.moment == "serving" and code == 0:
        found.append("exit code 0 for a death")
    for answer in answers:
        known = answer.end in (TYPED, WHOLE, CUT)
        if not known and not isinstance(answer.error, ConnectionError):
            found.append(f"a stream ended so: {answer.end}")
    if fault.kills:
        refused = reclaim(remove=True, directory=lists).leftovers
        found += [str(one) for one in refused if one.verdict is not Verdict.REMOVED]
    return found + server.leftovers()


def table_of(outcomes: Sequence[Outcome], seed: int) -> Table:
    """One row a fault."""
    table = Table(title=f"random faults, seed {seed}")
    table.add_column("no.", justify="right")
    table.add_column("fault")
    table.add_column("exit", justify="right")
    table.add_column("seconds", justify="right")
    table.add_column("verdict")
    for outcome in outcomes:
        table.add_row(
            str(outcome.number),
            outcome.fault,
            "hung" if outcome.code is None else str(outcome.code),
            f"{outcome.seconds:.2f}",
            "; ".join(outcome.broken)[:200] or "as promised",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
