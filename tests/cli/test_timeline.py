from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.core.test_phase_report import REPORTS
from tests.reports import a_report
from vllm_ashutdown.cli.timeline import Chart, charts
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Outcome, Phase, PhaseRecord
from vllm_ashutdown.core.report import ProcessEnd, RequestCounts, ShutdownReport
from vllm_ashutdown.core.trigger import Trigger


def of(chart: Chart, name: str) -> tuple[float, float]:
    (bar,) = [one for one in (*chart.phases, *chart.processes) if one.name == name]
    return bar.left, bar.left + bar.width


def test_bars_lie_where_the_time_was():
    whole = charts(a_report(seconds=9.1))[0]
    assert of(whole, "drain")[1] == pytest.approx(100 * 6 / 9.1, abs=0.01)
    assert of(whole, "core")[0] == pytest.approx(of(whole, "handler")[1])
    assert of(whole, "http")[0] == of(whole, "core")[0]


def test_the_axis_goes_to_the_last_thing_that_happened():
    late = ProcessEnd("late", 1, 0, ended=11.0)
    assert charts(a_report(processes=(late,), seconds=9.1))[0].end == 11.0
    assert charts(a_report(seconds=1.0))[0].end == pytest.approx(9.0, abs=0.01)


def test_what_follows_a_long_drain_is_drawn_again():
    whole, after = charts(a_report())
    assert (whole.title, whole.begin) == ("", 0.0)
    assert after.title == "After the drain"
    assert [bar.name for bar in after.phases] == list(Phase)[3:]
    first, last = of(after, "core")
    assert last - first == pytest.approx(100 * 3 / (after.end - after.begin), abs=0.1)


def test_a_short_drain_needs_no_second_chart():
    drain = PhaseRecord(Phase.DRAIN, 60.0, 1.0, Outcome.DONE, "", 0.0)
    assert len(charts(a_report(changed={Phase.DRAIN: drain}))) == 1


def test_a_process_has_a_bar_to_its_end_and_the_living_to_the_end_of_all():
    ends = (
        ProcessEnd("left", 1, 0, ended=4.5),
        ProcessEnd("lives", 2, None),
        ProcessEnd("nobody saw", 3, 0),
        ProcessEnd("killed", 4, -9, killed=True, ended=9.0),
    )
    whole, after = charts(a_report(processes=ends, seconds=9.0))
    bars = {bar.name: bar for bar in whole.processes}
    assert [*bars] == ["left", "lives", "killed"]
    assert of(whole, "left") == (0.0, pytest.approx(50, abs=0.1))
    assert of(whole, "lives") == (0.0, 100.0)
    assert [bar.kind for bar in bars.values()] == ["left", "alive", "broken"]
    assert "left" not in {bar.name for bar in after.processes}, "it was over by then"


@pytest.mark.parametrize("seconds", [3e-5, 0.007, 0.286, 1.0, 9.01, 12.7, 61, 4e3])
def test_ticks_are_few_round_and_in_order(seconds):
    report = ShutdownReport(
        Trigger.signal(15), Mode.ABORT, Mode.ABORT, seconds, (), RequestCounts()
    )
    ticks = charts(report)[0].ticks
    assert 4 <= len(ticks) <= 9
    assert (ticks[0].at, ticks[0].label) == (0.0, "0")
    steps = [b.at - a.at for a, b in itertools.pairwise(ticks)]
    assert steps == [pytest.approx(steps[0])] * len(steps)
    assert ticks[-1].at <= 100.0001
    assert len({tick.label for tick in ticks}) == len(ticks)


@given(REPORTS, st.floats(0, 1e6))
def test_whatever_a_report_says_no_bar_leaves_its_axis(report, ended):
    end = ProcessEnd("one", 1, 0, ended=ended)
    for chart in charts(structs.replace(report, processes=(end,))):
        assert chart.ticks
        for bar in (*chart.phases, *chart.processes):
            assert 0 <= bar.left <= 100
            assert 0 <= bar.width <= 100 - bar.left + 1e-6
