"""A section of the page of results, and what all of them are made with."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.plots import Plot
from benchmarks.verdicts import Verdict

__all__ = ["Found", "Section", "Table", "flat", "groups", "kept", "median", "table_by"]

Found = Sequence[Any]
"""What the records of one benchmark have found, one behind the other."""


@dataclass(frozen=True, slots=True)
class Table:
    """Headings, and rows whose first cell is what they are about."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Section:
    """One benchmark on the page.

    Attributes:
        title: Of it.
        about: What was done, in a sentence.
        plots: In their order.
        tables: Of figures.
        verdicts: What was promised, and what became of it.
        series: Whose dots the plots show.
        notes: What was seen besides, one line each.
    """

    title: str
    about: str
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    verdicts: Sequence[Verdict] = ()
    series: Sequence[str] = ()
    notes: Sequence[str] = ()


def flat(found: Found) -> list[Any]:
    """All rows of all records."""
    return [row for rows in found for row in rows]


def groups(runs: Iterable[Any], name: str) -> Iterator[tuple[str, list[Any]]]:
    """Those that have the same ``name``, under it."""
    kinds: dict[str, list[Any]] = {}
    for run in runs:
        kinds.setdefault(run[name], []).append(run)
    yield from sorted(kinds.items())


def table_by(runs: Sequence[Any], name: str, heading: str) -> Table:
    """A row for each ``name``: how many, how long, and what was broken."""
    rows = [
        (
            kind,
            str(len(own)),
            median([run["seconds"] for run in own]),
            f"{max(run['seconds'] for run in own):.3f}",
            str(sum(bool(run["broken"]) for run in own)),
        )
        for kind, own in groups(runs, name)
    ]
    return Table((heading, "runs", "median, s", "worst", "broken"), rows)


def kept(
    runs: Sequence[Any], bad: Sequence[Any], name: Callable[[Any], str]
) -> Verdict:
    """Whether all are as promised; ``name`` says which one is not."""
    told = "; ".join(f"{name(run)}: {run['broken'][0]}" for run in bad[:5])
    return Verdict(f"{len(runs) - len(bad)} of {len(runs)} as promised", not bad, told)


def median(seconds: Sequence[float]) -> str:
    """For a cell."""
    return f"{statistics.median(seconds):.3f}" if seconds else "-"
