"""Explores a stop's schedules, with stock's order and with ours, and counts faults.

    python benchmarks/race.py                          # 10,000 of ours, 200 of stock's
    python benchmarks/race.py --schedules 500 --stock 500 --seed 9000

A schedule is a stop of vLLM's real engine on a stub core beside requests, a call into
the core, a core that dies, callers that are cancelled, in an order that a seed draws
(`tests/explorer.py`). A caller that still waits costs stock's order half a second, so
there are fewer of those by default; the table is for 10,000 schedules of each.

The exit code is 1 if a schedule of ours has a fault.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

# The harness is the tests' own, and neither need be installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vllm"))

from benchmarks.output import add_json_to, count, table_of, write_json
from tests import heap

PER = 10_000
KINDS = {
    "false errors": "false_errors",
    "doubled terminal events": "doubled",
    "lost or wrong ends": "wrong",
    "waiting callers": "waiting",
}
"""As the table has them, and as `tests.explorer.Run` has them."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What the schedules of one order showed.

    Attributes:
        order: Whose.
        schedules: How many were explored.
        distinct: How many of them differed in the order of their steps.
        faulty: How many had a fault.
        faults: How many of each kind.
        first: The seed of the first that was faulty, to see it again.
        example: What was wrong there.
    """

    order: str
    schedules: int
    distinct: int
    faulty: int
    faults: dict[str, int]
    first: int | None
    example: str

    def per_10_000(self, found: int) -> str:
        """``found``, as if there had been so many schedules."""
        return f"{found * PER / self.schedules:,.0f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Explores; gives the exit code."""
    arguments = build_parser().parse_args(argv)
    console = Console()
    with console.status("importing vLLM"):
        import vllm_ashutdown

        vllm_ashutdown.register()
        from tests import explorer
    heap.freeze()
    begin = arguments.seed
    plan = {"stock": (explorer.stocks, arguments.stock)}
    plan["ours"] = (explorer.ours, arguments.schedules)
    found = []
    for order, (stop, schedules) in plan.items():
        seeds = track(
            range(begin, begin + schedules), f"order: {order}", console=console
        )
        runs = ((seed, explorer.explore(seed, stop)) for seed in seeds)
        found.append(findings(order, runs))
    console.print(
        table_of(
            f"the race of a stop, per {PER:,} schedules",
            ("", *(one.order for one in found)),
            [
                ("explored", *(f"{one.schedules:,}" for one in found)),
                ("of them distinct", *(f"{one.distinct:,}" for one in found)),
                ("faulty schedules", *(one.per_10_000(one.faulty) for one in found)),
                *(
                    (kind, *(one.per_10_000(one.faults[kind]) for one in found))
                    for kind in KINDS
                ),
            ],
        )
    )
    ours = found[-1]
    if ours.faulty:
        console.print(
            f"seed {ours.first}: {ours.example}", style="red", highlight=False
        )
    write_json(arguments.json, [asdict(one) for one in found])
    return int(bool(ours.faulty))


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Explore a stop's schedules, with stock's order and with ours.",
        epilog="Exit code: 0 if no schedule of ours has a fault, else 1.",
    )
    parser.add_argument(
        "--schedules", type=count, default=PER, help=f"of ours; default: {PER}"
    )
    parser.add_argument(
        "--stock", type=count, default=200, help="of stock's order; default: 200"
    )
    parser.add_argument("--seed", type=int, default=0, help="the first; default: 0")
    add_json_to(parser)
    return parser


def findings(order: str, runs: Iterable[tuple[int, Any]]) -> Findings:
    """Counts what ``runs`` showed: pairs of a seed and a `tests.explorer.Run`."""
    schedules, faulty = 0, 0
    seen: set[str] = set()
    faults = dict.fromkeys(KINDS, 0)
    first, example = None, ""
    for seed, run in runs:
        schedules += 1
        seen.add(run.schedule)
        for kind, name in KINDS.items():
            faults[kind] += len(getattr(run, name))
        if run.faults:
            faulty += 1
            if first is None:
                first, example = seed, run.faults[0]
    return Findings(order, schedules, len(seen), faulty, faults, first, example)


if __name__ == "__main__":
    sys.exit(main())
