"""Medians, their intervals and lines, against figures that are known."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from benchmarks.figures import FEWEST, Line, Median


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # The ranks that every table of the sign test's intervals gives.
    [(6, 1, 6), (8, 1, 8), (9, 2, 8), (12, 3, 10), (20, 6, 15), (30, 10, 21)],
)
def test_the_interval_reaches_from_rank_to_rank(count, low, high):
    measured = list(range(1, count + 1))
    random.Random(1).shuffle(measured)
    found = Median.of(measured)
    assert (found.low, found.high) == (low, high)
    assert found.value == (count + 1) / 2


def test_with_too_few_there_is_no_interval_and_no_guess():
    assert Median.of([3.0] * FEWEST).low == 3.0
    found = Median.of([1.0, 2.0, 4.0, 5.0, 6.0])
    assert found == Median(4.0, None, None)
    with pytest.raises(statistics.StatisticsError):
        Median.of([])


def test_it_holds_the_true_median_as_often_as_it_says():
    draw = random.Random(7)
    within = 0
    for _ in range(1000):
        found = Median.of([draw.expovariate(1) for _ in range(15)])
        assert found.low is not None
        assert found.high is not None
        within += found.low <= 0.6931 <= found.high
    assert within >= 940


def test_ratios_of_pairs_have_an_interval_that_is_as_true_and_narrower():
    draw = random.Random(7)
    within, narrower = 0, 0
    for _ in range(300):
        ratios = [1.02 * draw.lognormvariate(0, 0.15) for _ in range(30)]
        found, plain = Median.of_ratios(ratios), Median.of(ratios)
        assert None not in (found.low, found.high, plain.low, plain.high)
        within += found.low <= 1.02 <= found.high
        narrower += found.high - found.low < plain.high - plain.low
    assert within >= 275
    assert narrower >= 240


def test_it_does_not_matter_which_way_round_ratios_are():
    ratios = [0.8, 0.9, 1.0, 1.1, 1.3, 1.4, 2.0]
    found = Median.of_ratios(ratios)
    other = Median.of_ratios([1 / one for one in ratios])
    assert found.value == pytest.approx(1 / other.value)
    assert found.low == pytest.approx(1 / other.high)
    assert found.low < found.value < found.high


def test_the_ranks_of_an_interval_of_ratios_are_those_of_the_tables():
    # Wilcoxon's for ten pairs: eight of the 55 means are left out at either end.
    logs = list(range(10))
    found = Median.of_ratios([math.exp(one) for one in logs])
    means = sorted((a + b) / 2 for a in logs for b in logs if a <= b)
    assert math.log(found.low) == pytest.approx(means[8])
    assert math.log(found.high) == pytest.approx(means[-9])


def test_of_few_ratios_there_is_a_value_and_no_interval():
    assert Median.of_ratios([2.0, 2.0]) == Median(pytest.approx(2.0), None, None)
    with pytest.raises(statistics.StatisticsError):
        Median.of_ratios([])


def test_for_people_it_has_its_interval_if_there_is_one():
    assert Median(1.5, None, None).text(2, "ms") == "1.50 ms"
    assert Median(1.5, 1.0, 2.25).text(1, "ms") == "1.5 ms [1.0, 2.2]"


def test_a_line_and_how_well_it_fits():
    exact = Line.through([(1, 3), (2, 5), (4, 9)])
    assert (exact.slope, exact.intercept) == (pytest.approx(2), pytest.approx(1))
    assert exact.r_squared == pytest.approx(1)
    bent = Line.through([(0, 0), (1, 1), (2, 0), (3, 1)])
    assert bent.r_squared == pytest.approx(0.2)
