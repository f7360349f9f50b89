"""How values of a report are said to people, on a terminal and on a page alike."""

from __future__ import annotations

import math

from ..core.phase import Outcome
from ..core.report import ShutdownReport

OUTCOMES = {
    Outcome.DONE: "done",
    Outcome.SKIPPED: "skipped",
    Outcome.EXPIRED: "time was up",
    Outcome.RAISED: "cut short",
    Outcome.FAILED: "FAILED",
}


def span(seconds: float) -> str:
    """A span of time for people: three figures and the unit that suits it."""
    if math.isinf(seconds):
        return "no limit"
    if seconds <= 0:
        return "0 s"
    if seconds < 0.9995e-3:
        return f"{max(1.0, seconds * 1e6):.0f} µs"
    if seconds < 0.9995:
        return f"{_figures(seconds * 1e3)} ms"
    if seconds < 60:
        return f"{_figures(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def _figures(number: float) -> str:
    decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
    text = f"{number:.{decimals}f}"
    return text.removesuffix("." + "0" * decimals)


def mode(report: ShutdownReport) -> str:
    """The mode that a stop began with, and the one that it was raised to."""
    if report.final_mode is report.mode:
        return str(report.mode)
    return f"{report.mode}, raised to {report.final_mode}"


def printable(text: str) -> str:
    """``text`` in one line, with what could steer a terminal or is no text escaped.

    Names of files and processes are other people's: they may hold anything.
    """
    line = " ".join(text.split())
    return "".join(
        one if one.isprintable() else one.encode("unicode-escape").decode()
        for one in line
    )
