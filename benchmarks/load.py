"""What loading the plugin costs each kind of process: time, memory, modules.

    python benchmarks/load.py                 # API server, core and worker
    python benchmarks/load.py --runs 20 core

For each run a process of that role is begun, imports what vLLM has imported there when
it loads its plugins, and loads the plugin: what that takes it, and by how much it
grows, is the plugin's. A fork of one such process would be quicker, and dearer than
reality: whatever it touches first it has to copy. All seams of modules that are there
are laid at once, with their adapters: that is the whole cost, of which a part may come
later in real life. What only a stop needs an API server imports when its cores have
begun and it waits for them: that time, which nobody waits for, stands beside the other,
and the memory is in the sum. The plugin is compiled, as an installation leaves it: a
checkout whose Python may write no bytecode would be compiled anew each time, which
costs more than all the rest. What vLLM's own imports took in the same process stands
beside it, since machines differ.

The exit code is 1 if a role needs more than 30 ms or 5 MB, or if a core or a worker
imports a third-party module that vLLM had not imported there.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

# The package need not be installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vllm"))

from benchmarks.figures import FEWEST, Median
from benchmarks.output import add_json_to, count, table_of, write_json
from benchmarks.processor import Stopwatch

MOST_SECONDS = 0.030
MOST_BYTES = 5_000_000

SERVER, CORE, WORKER = "API server", "core", "worker"
ROLES = {
    SERVER: (
        "vllm.entrypoints.cli.main",
        "vllm.entrypoints.cli.serve",
        "vllm.entrypoints.launchers.api_server.entry",
        "vllm.v1.engine.async_llm",
    ),
    CORE: ("vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor"),
    WORKER: ("vllm.v1.executor.multiproc_executor", "vllm.v1.worker.cpu_worker"),
}
"""What vLLM imports in each, and with it all that these import."""

OWN = ("vllm", "vllm_ashutdown")


@dataclass(frozen=True, slots=True)
class Load:
    """What one process measured.

    Attributes:
        seconds: It took, less what it waited for a processor.
        size: Bytes by which its resident memory grew.
        third_party: Modules of others that were not there before.
        own: How many modules of the plugin.
        vllm: Seconds that vLLM's own imports had taken.
        later: Seconds of what a server does while its cores start.
    """

    seconds: float
    size: int
    third_party: tuple[str, ...]
    own: int
    vllm: float
    later: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one role pays.

    Attributes:
        role: The kind of process.
        milliseconds: Until it was loaded.
        later: Of what is done while its cores start.
        megabytes: By which the process grew.
        third_party: Modules of others that the plugin alone brought in.
        own: How many modules of the plugin.
        vllm: Seconds that vLLM's own imports took there, to compare with.
    """

    role: str
    milliseconds: Median
    later: Median
    megabytes: Median
    third_party: tuple[str, ...]
    own: int
    vllm: float

    @property
    def share(self) -> float:
        """The time as a share of what vLLM's own imports took."""
        return self.milliseconds.value / 1e3 / self.vllm

    @property
    def broken(self) -> Iterator[str]:
        """The promises that it breaks, one line each."""
        if self.milliseconds.value > MOST_SECONDS * 1e3:
            yield f"{self.role}: {self.milliseconds.value:.1f} ms"
        if self.megabytes.value > MOST_BYTES / 1e6:
            yield f"{self.role}: {self.megabytes.value:.1f} MB"
        if self.third_party and self.role != SERVER:
            yield f"{self.role} imports {', '.join(self.third_party)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measures each role in a process of its own; gives the exit code."""
    arguments = build_parser().parse_args(argv)
    console = Console()
    costs = []
    for role in arguments.roles or ROLES:
        with console.status(f"{role}: {arguments.runs} processes import vLLM"):
            costs.append(cost_of(role, measured(role, arguments.runs)))
        console.print(f"{role}: {arguments.runs} processes", highlight=False)
    console.print(
        table_of(
            "the plugin's cost by role, median [95 %]",
            ("", "ms", "of vLLM's own", "later, ms", "MB", "modules", "third party"),
            [
                (
                    cost.role,
                    cost.milliseconds.text(1),
                    f"{cost.share:.2%}",
                    cost.later.text(1),
                    cost.megabytes.text(2),
                    str(cost.own),
                    packages(cost.third_party),
                )
                for cost in costs
            ],
        )
    )
    broken = [promise for cost in costs for promise in cost.broken]
    for promise in broken:
        console.print(f"broken: {promise}", style="red", highlight=False)
    found = {"costs": [dataclasses.asdict(one) for one in costs], "broken": broken}
    write_json(arguments.json, found)
    return int(bool(broken))


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="What loading the plugin costs each kind of process.",
        epilog="Exit code: 0 if every promise held, else 1.",
    )
    parser.add_argument(
        "roles",
        nargs="*",
        type=_role,
        metavar="ROLE",
        help=f"one of {', '.join(map(repr, ROLES))}; default: all",
    )
    parser.add_argument(
        "--runs",
        type=count,
        default=8,
        help=f"processes of each; an interval takes {FEWEST} (default: 8)",
    )
    add_json_to(parser)
    return parser


def _role(text: str) -> str:
    if text not in ROLES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is none of {', '.join(map(repr, ROLES))}"
        )
    return text


def measured(role: str, runs: int) -> tuple[Load, ...]:
    """What ``runs`` processes of that role have measured, one after the other."""
    with tempfile.TemporaryDirectory(prefix="load-") as bytecode:
        _in_a_process(role, bytecode)  # compiles
        return tuple(_in_a_process(role, bytecode) for _ in range(runs))


def _in_a_process(role: str, bytecode: str) -> Load:
    program = (
        f"import sys; sys.path[:0] = {sys.path[:2]!r}\n"
        "from benchmarks import load\n"
        f"load.be({role!r}, {bytecode!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "VLLM_ASHUTDOWN": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    return Load(**{**said, "third_party": tuple(said["third_party"])})


def be(role: str, bytecode: str) -> None:
    """In that process: imports, loads, and prints what was measured."""
    warnings.simplefilter("ignore")
    with Stopwatch() as watch:
        began = watch.read()
        for name in ROLES[role]:
            importlib.import_module(name)
        vllm = watch.read() - began
    sys.pycache_prefix, sys.dont_write_bytecode = bytecode, False
    gc.collect()  # or the one that vLLM's imports owe falls into the measurement
    print(json.dumps(dataclasses.asdict(load(role, vllm))), flush=True)
    os._exit(0)  # nothing of vLLM's has to be taken apart


def load(role: str, vllm: float) -> Load:
    """Loads the plugin here and now, and measures that."""
    before, resident = set(sys.modules), _resident()
    with Stopwatch() as watch:
        began = watch.read()
        import vllm_ashutdown

        vllm_ashutdown.register()
        seconds = watch.read() - began
        if role == SERVER:
            from vllm_ashutdown.adapters.readiness import get_ready

            get_ready()
        later = watch.read() - began - seconds
    new = set(sys.modules) - before
    return Load(
        seconds,
        _resident() - resident,
        tuple(sorted(name for name in new if is_third_party(name))),
        sum(name.partition(".")[0] == "vllm_ashutdown" for name in new),
        vllm,
        later if role == SERVER else 0.0,
    )


def packages(modules: Iterable[str]) -> str:
    """What ``modules`` belong to, for people."""
    tops = dict.fromkeys(name.partition(".")[0] for name in modules)
    return ", ".join(tops) or "none"


def is_third_party(module: str) -> bool:
    """Whether it is neither Python's own, nor vLLM's, nor this package's."""
    top = module.partition(".")[0]
    is_pythons = top in sys.stdlib_module_names or top.startswith("__")  # __main__
    return not is_pythons and top not in OWN


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cost_of(role: str, loads: Sequence[Load]) -> Cost:
    """What ``loads`` come to."""
    return Cost(
        role,
        Median.of([one.seconds * 1e3 for one in loads]),
        Median.of([one.later * 1e3 for one in loads]),
        Median.of([one.size / 1e6 for one in loads]),
        tuple(sorted({name for one in loads for name in one.third_party})),
        max(one.own for one in loads),
        statistics.median(one.vllm for one in loads),
    )


if __name__ == "__main__":
    sys.exit(main())
