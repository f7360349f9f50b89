"""One thing that was looked at, and what to do about it."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Level(enum.StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """A stop works; something about it may surprise."""
    PROBLEM = "problem"
    """Stops are not what this package promises until it is mended."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing.

    Attributes:
        topic: What was looked at, in a word or two.
        level: How bad it is.
        found: What was found.
        remedy: What to do about it; empty where there is nothing to do.
    """

    topic: str
    level: Level
    found: str
    remedy: str = ""


def has_problem(findings: Iterable[Finding]) -> bool:
    """Whether one of them is more than a warning."""
    return any(finding.level is Level.PROBLEM for finding in findings)
