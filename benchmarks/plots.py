"""Plots for a page: figures in SVG, which take their colours from its style.

They are drawn for a phone's width and grow with the page, so that what is written in
them stays legible on both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from vllm_ashutdown.cli.timeline import round_step

__all__ = ["Plot", "Point", "Row", "scatter", "strip"]

WIDTH = 400
LEFT, RIGHT, BOTTOM = 8, 26, 26
LANE, LABEL, GAP = 13, 16, 6
HEIGHT = 220
TICKS = 5
DOT = 3.2


@dataclass(frozen=True, slots=True)
class Plot:
    """A title for everyone, and the SVG."""

    title: str
    svg: str


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a strip: a label, and the values of each series by its name."""

    label: str
    values: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a scatter, and the series that it is of."""

    x: float
    y: float
    series: str
    title: str = ""


def strip(title: str, rows: Sequence[Row], unit: str, bound: float = 0.0) -> Plot:
    """Each value a dot on one axis, each series a lane, with a bar at its median.

    Args:
        title: What it shows.
        rows: From the top down; a series without values has no lane.
        unit: Of the values.
        bound: Where a line is drawn that they are to stay below; 0 for none.
    """
    values = [v for row in rows for lane in row.values.values() for v in lane]
    least, most = min([0.0, *values]), max([bound, *values]) or 1.0
    axis = _Axis(least, most, LEFT, WIDTH - RIGHT)
    parts: list[str] = []
    y = 0.0
    for row in rows:
        y += LABEL
        parts.append(
            f'<text class="label" x="{LEFT}" y="{y - 3:g}">{_(row.label)}</text>'
        )
        for series, lane in row.values.items():
            if not lane:
                continue
            parts += _lane(series, lane, y + LANE / 2, axis, unit)
            y += LANE
        y += GAP
    if bound:
        parts.append(
            f'<line class="bound" x1="{axis.at(bound):.1f}" x2="{axis.at(bound):.1f}" '
            f'y1="0" y2="{y:g}"/>'
        )
    grid = _grid_x(axis, y, unit)
    return _svg(title, y + BOTTOM, [*grid, *parts])


def _lane(
    series: str, lane: Sequence[float], y: float, axis: _Axis, unit: str
) -> Iterator[str]:
    ordered = sorted(lane)
    middle = len(ordered) // 2
    median = (ordered[middle] + ordered[~middle]) / 2
    said = f"{series}: median {median:.3g} {unit}, worst {ordered[-1]:.3g}"
    yield f'<g class="{_class(series)}"><title>{_(said)}</title>'
    for value in ordered:
        yield f'<circle cx="{axis.at(value):.1f}" cy="{y:.1f}" r="{DOT}"/>'
    at = axis.at(median)
    yield (
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y - LANE / 2 + 1:.1f}" '
        f'y2="{y + LANE / 2 - 1:.1f}"/></g>'
    )


def scatter(
    title: str,
    points: Sequence[Point],
    x_unit: str,
    y_unit: str,
    *,
    logarithmic: bool = False,
    line: tuple[float, float] | None = None,
) -> Plot:
    """Points between two axes.

    Args:
        title: What it shows.
        points: All of them.
        x_unit: What is written at the end of the axis from left to right.
        y_unit: The same, from below.
        logarithmic: Both axes are.
        line: Slope and intercept of one that is drawn as well.
    """
    low_x = min((one.x for one in points), default=1.0)
    high_x = max((one.x for one in points), default=1.0)
    high_y = max((one.y for one in points), default=1.0) or 1.0
    kind = _Logarithmic if logarithmic else _Axis
    low_y = min((one.y for one in points), default=0.1) if logarithmic else 0.0
    x = kind(low_x if logarithmic else 0.0, high_x or 1.0, LEFT + 34, WIDTH - RIGHT)
    y = kind(low_y, high_y, HEIGHT - BOTTOM, 18)
    parts = [*_grid_x(x, HEIGHT - BOTTOM, x_unit, begin=18), *_grid_y(y, y_unit)]
    if line is not None:
        slope, intercept = line
        along = [
            x.low * (x.high / x.low) ** (n / 40) if logarithmic else x.high * n / 40
            for n in range(41)
        ]
        places = [
            f"{x.at(one):.1f},{y.at(slope * one + intercept):.1f}"
            for one in along
            if slope * one + intercept >= y.low
        ]
        parts.append(f'<polyline class="fit" points="{" ".join(places)}"/>')
    for one in points:
        hint = f"<title>{_(one.title)}</title>" if one.title else ""
        parts.append(
            f'<g class="{_class(one.series)}"><circle cx="{x.at(one.x):.1f}" '
            f'cy="{y.at(one.y):.1f}" r="{DOT}">{hint}</circle></g>'
        )
    return _svg(title, HEIGHT, parts)


class _Axis:
    """Values to places, and where its marks stand."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self.low, self.high = low, high
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        """The place of ``value``."""
        share = (value - self.low) / (self.high - self.low or 1.0)
        return self._begin + share * (self._end - self._begin)

    @property
    def marks(self) -> list[float]:
        """Round numbers from one end to the other."""
        width = round_step(max(self.high - self.low, 1e-9) / TICKS)
        first = math.ceil(self.low / width - 1e-9)
        last = math.floor(self.high / width + 1e-9)
        return [number * width for number in range(first, last + 1)]


class _Logarithmic(_Axis):
    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        low = max(low, 1e-9)
        super().__init__(low, max(high, low * 1.0001), begin, end)

    def at(self, value: float) -> float:
        share = math.log(max(value, 1e-12) / self.low) / math.log(self.high / self.low)
        return self._begin + share * (self._end - self._begin)

    @property
    def marks(self) -> list[float]:
        first = math.ceil(math.log10(self.low) - 1e-9)
        last = math.floor(math.log10(self.high) + 1e-9)
        return [10.0**power for power in range(first, last + 1)]


def _grid_x(axis: _Axis, end: float, unit: str, begin: float = 0) -> Iterator[str]:
    marks = axis.marks
    for number, mark in enumerate(marks):
        at = f"{axis.at(mark):.1f}"
        text = f"{mark:g}" + (f" {unit}" if number == len(marks) - 1 else "")
        yield f'<line class="grid" x1="{at}" x2="{at}" y1="{begin:g}" y2="{end:g}"/>'
        yield f'<text class="tick" x="{at}" y="{end + 15:g}">{_(text)}</text>'


def _grid_y(axis: _Axis, unit: str) -> Iterator[str]:
    for mark in axis.marks:
        at = f"{axis.at(mark):.1f}"
        yield (
            f'<line class="grid" x1="{LEFT + 34}" x2="{WIDTH - RIGHT}" '
            f'y1="{at}" y2="{at}"/>'
        )
        yield f'<text class="side" x="{LEFT + 30}" y="{at}" dy="4">{mark:g}</text>'
    yield f'<text class="label" x="{LEFT}" y="10">{_(unit)}</text>'


def _svg(title: str, height: float, parts: Sequence[str]) -> Plot:
    return Plot(
        title,
        f'<svg class="figure" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'aria-label="{_(title)}">{"".join(parts)}</svg>',
    )


def _class(series: str) -> str:
    """A name for the style, out of whatever a series is called."""
    return "series " + "".join(c for c in series.lower() if c.isalnum())


def _(text: str) -> str:
    return escape(text, quote=True)
