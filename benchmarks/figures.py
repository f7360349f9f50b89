"""What is said of a row of measurements, without a guess at how they are spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb
from typing import Self

__all__ = ["FEWEST", "Line", "Median"]

CONFIDENCE = 0.95
FEWEST = 6
"""So many measurements it takes for an interval of that confidence."""


@dataclass(frozen=True, slots=True)
class Median:
    """A median, and the interval that holds the true one in 95 of 100 cases.

    The interval reaches from one measurement to another: each lies above the true
    median with a chance of one half, whatever the distribution, and that is all it
    takes. With fewer than six there is none, and both ends are ``None``.

    Attributes:
        value: The median of the measurements.
        low: The interval's lower end.
        high: Its upper end.
    """

    value: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, measured: Sequence[float]) -> Self:
        """Raises :class:`statistics.StatisticsError` where nothing was measured."""
        value = statistics.median(measured)
        ordered, count = sorted(measured), len(measured)
        # The chance that fewer than `rank` of them lie below the true median, doubled
        # for the other side, is what the interval leaves out.
        rank, outside = 0, 0.0
        while rank < count // 2:
            outside += 2 * comb(count, rank) / 2**count
            if outside > 1 - CONFIDENCE:
                break
            rank += 1
        if rank == 0:
            return cls(value, None, None)
        return cls(value, ordered[rank - 1], ordered[count - rank])

    @classmethod
    def of_ratios(cls, measured: Sequence[float]) -> Self:
        """The same for ratios of pairs, where it could as well be the other way round.

        If neither side is dearer, a ratio and its reciprocal are as likely as each
        other. With that much known the interval is narrower: it is that of Wilcoxon's
        signed ranks, and the value the median of all means of two, both of logarithms.

        Raises:
            statistics.StatisticsError: nothing was measured.
            ValueError: one is not above 0.
        """
        logs, count = [math.log(one) for one in measured], len(measured)
        if count < FEWEST:
            return cls(math.exp(statistics.median(logs)), None, None)
        means = sorted(
            (one + other) / 2 for one, other in combinations_with_replacement(logs, 2)
        )
        # By the normal law, which the sum of signed ranks follows closely from six on.
        spread = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
        beyond = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * spread
        rank = max(0, math.floor(len(means) / 2 - beyond))
        value, low, high = statistics.median(means), means[rank], means[-1 - rank]
        return cls(math.exp(value), math.exp(low), math.exp(high))

    def text(self, digits: int = 3, unit: str = "") -> str:
        """For people."""
        end = f" {unit}" if unit else ""
        if self.low is None or self.high is None:
            return f"{self.value:.{digits}f}{end}"
        low, high = f"{self.low:.{digits}f}", f"{self.high:.{digits}f}"
        return f"{self.value:.{digits}f}{end} [{low}, {high}]"


@dataclass(frozen=True, slots=True)
class Line:
    """The straight line that fits best.

    Attributes:
        slope: Its rise for each one more.
        intercept: Where it begins.
        r_squared: The share of all variation that it explains; 1 is all of it.
    """

    slope: float
    intercept: float
    r_squared: float

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Self:
        """Raises :class:`statistics.StatisticsError` for points at less than two x."""
        x, y = zip(*points, strict=True)
        slope, intercept = statistics.linear_regression(x, y)
        return cls(slope, intercept, statistics.correlation(x, y) ** 2)
