"""How fast the tree of a real server can end at all: everything killed at once.

    python benchmarks/floor.py --runs 5
    python benchmarks/floor.py --runs 5 --topology tp2

Nothing can end faster than by SIGKILL to all of it, so that is what a stop is to be
compared with. The time is from the first of these signals to the moment at which the
kernel says that the last process is over. It has memory to take back until then, and
that is most of it. The exit code is 1 if something survived.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGKILL, pidfd_send_signal

import psutil
from rich.console import Console

# The harness is the tests' own, and neither need be installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vllm"))

from benchmarks.figures import FEWEST, Median
from benchmarks.output import add_json_to, count, table_of, write_json
from tests.server import Server
from tests.topologies import TOPOLOGIES

PATIENCE = 10.0
"""Seconds after which a process is said to have survived."""


@dataclass(frozen=True, slots=True)
class Floor:
    """One server that was killed.

    Attributes:
        processes: How many there were.
        resident: Bytes that they had in memory together; what is shared counts twice.
        seconds: From the first signal to the end of the last process.
        survivors: How many did not end.
    """

    processes: int
    resident: int
    seconds: float
    survivors: int


def main(argv: Sequence[str] | None = None) -> int:
    """Starts and kills servers; gives the exit code."""
    arguments = build_parser().parse_args(argv)
    console = Console()
    floors = []
    for number in range(1, arguments.runs + 1):
        with console.status(f"run {number} of {arguments.runs}"):
            floors.append(kill_once(arguments.topology))
        console.print(
            f"run {number}/{arguments.runs}: {floors[-1].seconds:.3f} s",
            highlight=False,
        )
    seconds = Median.of([floor.seconds for floor in floors])
    console.print(
        table_of(
            f"SIGKILL to all of a server, topology {arguments.topology}",
            ("runs", "processes", "resident MB", "median s", "fastest", "survivors"),
            [
                (
                    str(len(floors)),
                    str(max(floor.processes for floor in floors)),
                    f"{max(floor.resident for floor in floors) / 1e6:,.0f}",
                    seconds.text(),
                    f"{min(floor.seconds for floor in floors):.3f}",
                    str(sum(floor.survivors for floor in floors)),
                )
            ],
        )
    )
    write_json(arguments.json, [asdict(floor) for floor in floors])
    return int(any(floor.survivors for floor in floors))


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="How fast a real server's processes can end at all.",
        epilog="Exit code: 0 if all of them ended, else 1.",
    )
    parser.add_argument(
        "--runs",
        type=count,
        default=FEWEST,
        help=f"default: {FEWEST}, the fewest that give an interval",
    )
    parser.add_argument(
        "--topology", choices=TOPOLOGIES, default="one", help="default: one"
    )
    add_json_to(parser)
    return parser


def kill_once(topology: str) -> Floor:
    """Starts one server, without the plugin, and kills all of it."""
    with (
        tempfile.TemporaryDirectory(prefix="floor-") as directory,
        Server(
            Path(directory),
            topology=TOPOLOGIES[topology],
            # What ends when its parent does would end before its turn.
            environment={"VLLM_ASHUTDOWN": "0"},
        ) as server,
    ):
        server.watch.look()
        return kill(list(server.watch.processes))


def kill(processes: Sequence[psutil.Process]) -> Floor:
    """Kills them all at once and waits for the last, by the kernel's word."""
    with ExitStack() as stack:
        handles, resident = [], 0
        for process in processes:
            try:
                handle = os.pidfd_open(process.pid)
            except ProcessLookupError:  # it has left by itself
                continue
            stack.callback(os.close, handle)
            if process.is_running():  # and not another one of the same pid
                resident += process.memory_info().rss
                handles.append(handle)
        began = time.monotonic()
        poll = select.poll()
        for handle in handles:
            # A sibling's death may have taken it along; it counts all the same.
            with suppress(ProcessLookupError):
                pidfd_send_signal(handle, SIGKILL)
            poll.register(handle, select.POLLIN)
        running, ended_at = set(handles), began
        while running and (left := began + PATIENCE - time.monotonic()) > 0:
            for handle, _ in poll.poll(left * 1000):
                ended_at = time.monotonic()
                poll.unregister(handle)
                running.discard(handle)
        return Floor(len(handles), resident, ended_at - began, len(running))


if __name__ == "__main__":
    sys.exit(main())
