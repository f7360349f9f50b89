"""Makes one page of what the benchmarks have found.

    python benchmarks/stops.py --floor --json stops.json
    python benchmarks/race.py --json race.json
    python benchmarks/results.py stops.json race.json --output docs/results.html

Each file is what a benchmark has written with ``--json``; several of one benchmark,
such as the parts of a campaign, are taken together. The page says on what machine and
with what versions each was measured, and what command repeats it. It is one file, which
needs nothing but itself, in light and in dark, on a phone and on paper.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import (
    ChoiceLoader,
    Environment,
    FileSystemLoader,
    PackageLoader,
    StrictUndefined,
)
from markupsafe import Markup

# The package need not be installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vllm"))

from benchmarks.record import Record, RecordError
from benchmarks.section import Section
from benchmarks.sections import SECTIONS, section_of
from vllm_ashutdown.version import __version__

TEMPLATES = Path(__file__).resolve().parent / "templates"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "results.html"


@dataclass(frozen=True, slots=True)
class Place:
    """A machine with what ran on it, and the benchmarks that did."""

    facts: dict[str, str]
    benchmarks: list[str]


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the page; gives the exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        records = [Record.read(path) for path in arguments.files]
    except RecordError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    unknown = [one.benchmark for one in records if one.benchmark not in SECTIONS]
    if unknown:
        known = ", ".join(SECTIONS)
        print(
            f"error: of {unknown[0]} there is no section, but {known}", file=sys.stderr
        )
        return 2
    arguments.output.write_text(page(records))
    print(f"{arguments.output}: {len(records)} files")
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Make one page of what the benchmarks have found.",
        epilog="Exit code: 0, or 2 for a file that no benchmark has written.",
    )
    parser.add_argument("files", nargs="+", type=Path, help="written with --json")
    parser.add_argument(
        "--output", type=Path, default=PAGE, help="default: docs/results.html"
    )
    return parser


def page(records: Sequence[Record]) -> str:
    """The whole page."""
    environment = Environment(
        # Its style is that of a report's page, and a little on top.
        loader=ChoiceLoader(
            [FileSystemLoader(TEMPLATES), PackageLoader("vllm_ashutdown.cli")]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = Markup  # drawn by us, with every word escaped
    sections = [
        (name, section_of(own), commands_of(own))
        for name in SECTIONS
        if (own := [one for one in records if one.benchmark == name])
    ]
    return environment.get_template("results.html").render(
        sections=sections,
        broken=sum(len(broken_of(section)) for _, section, _ in sections),
        places=places_of(records),
        version=__version__,
    )


def broken_of(section: Section) -> list[str]:
    """The promises that a section calls broken."""
    return [one.promise for one in section.verdicts if one.kept is False]


def commands_of(records: Sequence[Record]) -> list[str]:
    """What repeats them, each once."""
    return list(dict.fromkeys(one.command for one in records if one.command))


def places_of(records: Sequence[Record]) -> list[Place]:
    """Each machine and set of versions once, with the benchmarks that ran there."""
    places: list[Place] = []
    for record in records:
        facts = {**record.machine, **record.versions}
        place = next((one for one in places if one.facts == facts), None)
        if place is None:
            place = Place(facts, [])
            places.append(place)
        if record.benchmark not in place.benchmarks:
            place.benchmarks.append(record.benchmark)
    return places


if __name__ == "__main__":
    sys.exit(main())
