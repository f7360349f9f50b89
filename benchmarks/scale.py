"""Time and memory of a stop against the requests that are in flight.

    python benchmarks/scale.py                        # 1 to 10,000 of them
    python benchmarks/scale.py --sizes 1 100 --runs 3

A stop is ``await engine.ashutdown()`` in abort mode on vLLM's real engine over a stub
core. Besides its time it is told for how long the loop was held at the most: a task
that does nothing but to let go and to come back measures each of its turns, for nobody
else gets one meanwhile either. The sizes take turns, so that a busy hour of the machine
is everybody's; and time in which the loop's thread was ready, and others had the
processor, is told apart and not counted. A last run of each size traces memory, which
makes it slow; its time is not counted.

The exit code is 1 if one of the promises is broken: the most requests end in less than
a second, in a time that is linear in their number, no hold of the loop is longer than
20 ms, each caller gets its one typed error, and nothing is left.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from rich.console import Console

# The harness is the tests' own, and neither need be installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vllm"))

from benchmarks.figures import Line
from benchmarks.output import add_json_to, count, table_of, write_json
from benchmarks.processor import Stopwatch
from tests import heap

SIZES = (1, 10, 100, 1000, 3000, 10000)
MOST_SECONDS = 1.0
LEAST_R_SQUARED = 0.98
LONGEST_HOLD = 0.020


@dataclass(frozen=True, slots=True)
class Run:
    """One stop.

    Attributes:
        size: Requests in flight.
        seconds: From the call of ``ashutdown()`` to its report, less those queued.
        queued: Seconds in which the loop's thread waited for a processor.
        hold: The longest turn of the loop, in seconds, less what it was queued.
        told: Callers that got their typed error.
        left: What the report says is left.
        peak: Bytes that the stop had allocated at the most; 0 where nobody looked.
    """

    size: int
    seconds: float
    queued: float
    hold: float
    told: int
    left: tuple[str, ...]
    peak: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs them all; gives the exit code."""
    arguments = build_parser().parse_args(argv)
    console = Console()
    logging.getLogger("vllm").setLevel(logging.ERROR)
    with console.status("importing vLLM"):
        settle()
    runs: list[Run] = []
    rounds = [False] * arguments.runs + [True]
    for number, traced in enumerate(rounds, 1):
        for size in arguments.sizes:
            what = f"round {number} of {len(rounds)}, {size} requests"
            with console.status(what):
                runs.append(asyncio.run(stop_once(size, traced=traced)))
            console.print(
                f"{what}: {runs[-1].seconds:.3f} s"
                + (", memory traced" if traced else ""),
                highlight=False,
            )
    console.print(table_of("ashutdown() by requests in flight", HEADINGS, rows(runs)))
    timed = [run for run in runs if not run.peak]
    line = line_of(timed)
    if line is not None:
        console.print(
            f"{line.slope * 1e6:.1f} µs for each request on top of "
            f"{line.intercept * 1e3:.1f} ms, R² {line.r_squared:.4f}",
            highlight=False,
        )
    broken = broken_by(runs, line)
    for promise in broken:
        console.print(f"broken: {promise}", style="red", highlight=False)
    found = {
        "runs": [asdict(run) for run in runs],
        "line": line and asdict(line),
        "broken": broken,
    }
    write_json(arguments.json, found)
    return int(bool(broken))


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Time and memory of a stop against the requests in flight.",
        epilog="Exit code: 0 if every promise held, else 1.",
    )
    parser.add_argument(
        "--sizes",
        type=count,
        nargs="+",
        default=SIZES,
        metavar="N",
        help=f"requests in flight; default: {' '.join(map(str, SIZES))}",
    )
    parser.add_argument(
        "--runs", type=count, default=5, help="timed runs of each; default: 5"
    )
    add_json_to(parser)
    return parser


def settle() -> None:
    """Imports vLLM and takes it out of the collector's rounds, as its server does."""
    import tests.stub_core  # noqa: F401
    import vllm_ashutdown

    vllm_ashutdown.register()
    heap.freeze()


async def stop_once(size: int, *, traced: bool = False) -> Run:
    """One engine, with ``size`` requests in flight, is stopped."""
    from tests.stub_core import ENDLESS, generate, stub_engine
    from vllm_ashutdown import EngineShutdownError

    flowing = asyncio.Queue[None]()

    async def call(engine: Any, name: str) -> bool:
        try:
            async for _ in generate(engine, name, ENDLESS):
                flowing.put_nowait(None)
        except EngineShutdownError:
            return True
        return False

    with stub_engine() as (engine, _):
        calls = [asyncio.create_task(call(engine, f"r{one}")) for one in range(size)]
        for _ in calls:
            await flowing.get()
        with Stopwatch() as watch, peak_memory(traced) as peak:
            async with Turns(watch) as turns:
                began, queued = watch.read(), watch.queued()
                report = await engine.ashutdown()
                seconds, queued = watch.read() - began, watch.queued() - queued
        told = sum(await asyncio.gather(*calls))
    return Run(size, seconds, queued, turns.longest, told, report.leftovers, peak[0])


class Turns:
    """How long the loop's turns take in the block. An asynchronous context manager.

    Args:
        watch: Of the loop's thread.

    Attributes:
        longest: The longest so far, in seconds.
    """

    def __init__(self, watch: Stopwatch) -> None:
        self.longest = 0.0
        self._watch = watch
        self._over = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._turn())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        await self._task  # which measures the turn in which the block ended

    async def _turn(self) -> None:
        before = self._watch.read()
        while not self._over:
            await asyncio.sleep(0)
            now = self._watch.read()
            self.longest = max(self.longest, now - before)
            before = now


@contextmanager
def peak_memory(traced: bool) -> Iterator[list[int]]:
    """The most bytes that were allocated in the block and not given back."""
    peak = [0]
    if not traced:
        yield peak
        return
    tracemalloc.start()
    try:
        yield peak
        peak[0] = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


HEADINGS = (
    *("requests", "best s", "median", "worst", "queued"),
    *("hold ms", "worst", "KiB", "told"),
)


def rows(runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    """The table's: one a size."""
    for size in dict.fromkeys(run.size for run in runs):
        own = [run for run in runs if run.size == size]
        timed = [run for run in own if not run.peak]
        seconds = [run.seconds for run in timed]
        yield (
            f"{size:,}",
            f"{min(seconds):.3f}",
            f"{statistics.median(seconds):.3f}",
            f"{max(seconds):.3f}",
            f"{statistics.median(run.queued for run in timed):.3f}",
            f"{statistics.median(run.hold for run in timed) * 1e3:.1f}",
            f"{max(run.hold for run in timed) * 1e3:.1f}",
            f"{max(run.peak for run in own) / 1024:,.0f}",
            "all" if all(run.told == size for run in own) else "NOT ALL",
        )


def line_of(timed: Sequence[Run]) -> Line | None:
    """The line through the fastest of each size, where there are sizes enough.

    What else runs on the machine only ever adds to a time.
    """
    sizes = sorted({run.size for run in timed})
    if len(sizes) < 3:
        return None
    return Line.through(
        [
            (size, min(run.seconds for run in timed if run.size == size))
            for size in sizes
        ]
    )


def broken_by(runs: Sequence[Run], line: Line | None) -> list[str]:
    """The promises that these runs broke, one line each."""
    found = []
    timed = [run for run in runs if not run.peak]
    for size in sorted({run.size for run in timed}):
        median = statistics.median(run.seconds for run in timed if run.size == size)
        if median >= MOST_SECONDS:
            found.append(f"{size} requests took {median:.3f} s")
        hold = statistics.median(run.hold for run in timed if run.size == size)
        if hold > LONGEST_HOLD:
            found.append(f"{size} requests held the loop for {hold * 1e3:.1f} ms")
    for run in runs:
        if run.told != run.size:
            found.append(f"{run.size - run.told} of {run.size} callers were not told")
        found += [f"with {run.size} requests: {one}" for one in run.left]
    if line is not None and line.r_squared < LEAST_R_SQUARED:
        found.append(f"the time is not linear: R² {line.r_squared:.4f}")
    return found


if __name__ == "__main__":
    sys.exit(main())
