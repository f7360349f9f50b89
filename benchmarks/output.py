"""How every program here shows what it has found: a table, and JSON for programs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.record import Record

__all__ = ["add_json_to", "count", "table_of", "write_json"]


def table_of(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]
) -> Table:
    """A table whose first column is text and whose others are figures."""
    table = Table(title=title)
    for number, heading in enumerate(headings):
        table.add_column(
            heading, justify="right" if number else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*row)
    return table


def add_json_to(parser: argparse.ArgumentParser) -> None:
    """Adds ``--json FILE``."""
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all of it there as well"
    )


def write_json(path: Path | None, found: Any) -> None:
    """Writes ``found`` there as a record, if the command line names a place."""
    if path is not None:
        record = Record.here(found).to_json()
        path.write_text(json.dumps(record, indent=2) + "\n")


def count(text: str) -> int:
    """A number of times for argparse.

    Raises:
        argparse.ArgumentTypeError: it is no whole number of 1 or more.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)
