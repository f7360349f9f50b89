"""Makes an engine, asks it and closes it, again and again in one process: what grows?

    python benchmarks/cycles.py --kind in-process --cycles 30
    python benchmarks/cycles.py --kind llm
    python benchmarks/cycles.py --kind async

After each closing the process is looked at: its descriptors, threads and children, what
is in /dev/shm and in its temporary directory, the tasks of its loop, its memory. The
exit code is 1 if the last cycle has more of anything than the second, if memory still
grows by 1 % a cycle over the last five, or if a closing took more than half a second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

# The harness is the tests' own, and neither need be installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vllm"))

from benchmarks.output import add_json_to, count, table_of, write_json
from tests import resources
from tests.tiny_model import counts, tiny_model

CLOSING_SECONDS = 0.5
GROWTH = 0.01
"""Of the memory, a cycle."""

LAST = 5
"""Cycles over which that is looked at."""

PROMPT, TOKENS = "Count on from 417", 16
ENGINE: dict[str, Any] = {
    "enforce_eager": True,
    "num_gpu_blocks_override": 1024,
    "gpu_memory_utilization": 0.5,
}


@dataclass(frozen=True, slots=True)
class Cycle:
    """What there was when an engine had been closed.

    Attributes:
        closing: Seconds that it took.
        resident: Bytes of the process in memory.
        descriptors: How many it has open.
        threads: By name, those of Python's.
        children: Its processes, but for Python's resource tracker.
        memory: Names in /dev/shm.
        files: Names in its temporary directory.
        tasks: Of its loop, but for the one that asks.
    """

    closing: float
    resident: int
    descriptors: int
    threads: list[str]
    children: list[str]
    memory: list[str]
    files: list[str]
    tasks: int = 0

    @classmethod
    def seen(cls, closing: float, temporary: Path, tasks: int = 0) -> Cycle:
        """Looks now."""
        me = psutil.Process()
        children = [resources.name_of(one) for one in me.children(recursive=True)]
        return cls(
            closing=closing,
            resident=me.memory_info().rss,
            descriptors=me.num_fds(),
            threads=sorted(one.name for one in threading.enumerate()),
            children=[one for one in children if "resource_tracker" not in one],
            memory=sorted(resources.memory_names()),
            files=sorted(one.name for one in temporary.iterdir()),
            tasks=tasks,
        )

    def more_than(self, other: Cycle) -> list[str]:
        """What this one has more of."""
        found = []
        if self.descriptors > other.descriptors:
            found.append(f"descriptors: {other.descriptors} to {self.descriptors}")
        if self.tasks > other.tasks:
            found.append(f"tasks: {other.tasks} to {self.tasks}")
        for name in ("threads", "children", "memory", "files"):
            mine, theirs = list(getattr(self, name)), getattr(other, name)
            for one in theirs:
                if one in mine:
                    mine.remove(one)
            found += [f"{name}: {one}" for one in mine]
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the cycles; gives the exit code."""
    arguments = build_parser().parse_args(argv)
    console = Console()
    in_process = arguments.kind == "in-process"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if in_process else "1"
    cycles: list[Cycle] = []

    def note(cycle: Cycle) -> None:
        cycles.append(cycle)
        console.print(
            f"cycle {len(cycles)}/{arguments.cycles}: closed in {cycle.closing:.3f} s, "
            f"{cycle.resident / 2**20:.0f} MiB, {cycle.descriptors} descriptors",
            highlight=False,
        )

    with tempfile.TemporaryDirectory(prefix="cyc-") as temporary:
        os.environ["TMPDIR"] = tempfile.tempdir = temporary
        if arguments.kind == "async":
            asyncio.run(run_async(arguments.cycles, Path(temporary), note))
        else:
            for _ in range(arguments.cycles):
                note(cycle_of_llm(Path(temporary)))
    found = faults_of(cycles)
    console.print(
        table_of(
            f"{arguments.kind}: {len(cycles)} cycles",
            ["", "second", "last"],
            [
                ("descriptors", *(str(one.descriptors) for one in _ends(cycles))),
                ("threads", *(str(len(one.threads)) for one in _ends(cycles))),
                ("children", *(str(len(one.children)) for one in _ends(cycles))),
                ("names in /dev/shm", *(str(len(one.memory)) for one in _ends(cycles))),
                ("temporary files", *(str(len(one.files)) for one in _ends(cycles))),
                ("tasks", *(str(one.tasks) for one in _ends(cycles))),
                ("MiB", *(f"{one.resident / 2**20:.0f}" for one in _ends(cycles))),
            ],
        )
    )
    closing = [cycle.closing for cycle in cycles]
    console.print(
        f"closed in {statistics.median(closing):.3f} s, {max(closing):.3f} s at worst; "
        + ("; ".join(found) or "nothing grows"),
        highlight=False,
    )
    write_json(arguments.json, [asdict(cycle) for cycle in cycles])
    return int(bool(found))


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Make, ask and close an engine in one process, and see what grows.",
        epilog="Exit code: 0 if nothing does, else 1.",
    )
    parser.add_argument(
        "--kind",
        choices=["llm", "async", "in-process"],
        default="in-process",
        help="LLM with a core process, AsyncLLM, or LLM in one process (the default)",
    )
    parser.add_argument("--cycles", type=count, default=30, help="default: 30")
    add_json_to(parser)
    return parser


def cycle_of_llm(temporary: Path) -> Cycle:
    """One of an ``LLM``."""
    from vllm import LLM, SamplingParams

    with LLM(str(tiny_model()), **ENGINE) as llm:
        params = SamplingParams(max_tokens=TOKENS, temperature=0)
        (answer,) = llm.generate(PROMPT, params, use_tqdm=False)
        assert counts(answer.outputs[0].text)
        began = time.monotonic()
    return Cycle.seen(time.monotonic() - began, temporary)


async def run_async(cycles: int, temporary: Path, note: Any) -> None:
    """All of an ``AsyncLLM``, in one loop."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from vllm import SamplingParams

    for _ in range(cycles):
        arguments = AsyncEngineArgs(str(tiny_model()), **ENGINE)
        async with AsyncLLM.from_engine_args(arguments) as engine:
            params = SamplingParams(max_tokens=TOKENS, temperature=0)
            async for answer in engine.generate(PROMPT, params, "r"):
                text = answer.outputs[0].text
            assert counts(text)
            began = time.monotonic()
        tasks = len(asyncio.all_tasks()) - 1
        note(Cycle.seen(time.monotonic() - began, temporary, tasks))


def faults_of(cycles: Sequence[Cycle]) -> list[str]:
    """What is wrong with them."""
    second, last = _ends(cycles)
    found = last.more_than(second)
    latest = [one.resident for one in cycles[-LAST:]]
    grown = (latest[-1] / latest[0] - 1) / max(1, len(latest) - 1)
    if grown >= GROWTH:
        found.append(f"memory grows by {grown:.1%} a cycle")
    worst = max(one.closing for one in cycles)
    if worst > CLOSING_SECONDS:
        found.append(f"one took {worst:.3f} s to close")
    return found


def _ends(cycles: Sequence[Cycle]) -> tuple[Cycle, Cycle]:
    return cycles[min(1, len(cycles) - 1)], cycles[-1]


if __name__ == "__main__":
    sys.exit(main())
