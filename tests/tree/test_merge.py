"""Several reports told as one: nothing bad is lost, and the counts add up."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_ashutdown.core.merge import merged_phase, merged_phases, merged_requests
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Outcome, Phase, PhaseRecord
from vllm_ashutdown.core.report import RequestCounts, ShutdownReport
from vllm_ashutdown.core.trigger import Trigger

SECONDS = st.floats(0, 1000)
DETAILS = st.sampled_from(["", "one", "other"])


def records(phase: Phase | None = None) -> st.SearchStrategy[PhaseRecord]:
    return st.builds(
        PhaseRecord,
        st.sampled_from(Phase) if phase is None else st.just(phase),
        SECONDS | st.just(float("inf")),
        SECONDS,
        st.sampled_from(Outcome),
        DETAILS,
        SECONDS,
    )


COUNTS = st.integers(0, 1000)
REPORTS = st.fixed_dictionaries(
    {
        "trigger": st.just(Trigger.call("a test")),
        "mode": st.just(Mode.DRAIN),
        "final_mode": st.just(Mode.DRAIN),
        "seconds": SECONDS,
        "phases": st.lists(records(), max_size=9, unique_by=lambda one: one.phase).map(
            tuple
        ),
        "requests": st.builds(RequestCounts, COUNTS, COUNTS, COUNTS),
    }
).map(lambda given: ShutdownReport(**given))
FEW = settings(max_examples=40, deadline=None)


def end_of(record: PhaseRecord) -> float:
    return record.began + record.spent


@FEW
@given(st.lists(records(Phase.DRAIN), min_size=1, max_size=4), st.randoms())
def test_one_record_spans_all_and_has_the_worst_outcome(side_by_side, random):
    merged = merged_phase(side_by_side)
    assert merged.phase is Phase.DRAIN
    assert merged.began == min(one.began for one in side_by_side)
    latest = max(map(end_of, side_by_side))
    assert abs(end_of(merged) - latest) < 1e-9 * (1 + latest)
    assert merged.requested == max(one.requested for one in side_by_side)
    outcomes = {one.outcome for one in side_by_side}
    assert merged.outcome in outcomes
    for worse in (Outcome.FAILED, Outcome.EXPIRED, Outcome.RAISED, Outcome.DONE):
        if worse in outcomes:
            assert merged.outcome is worse
            break
    for one in side_by_side:
        assert one.detail in merged.detail
    assert merged.detail.count("one") <= 1
    shuffled = list(side_by_side)
    random.shuffle(shuffled)
    again = merged_phase(shuffled)
    assert (again.began, again.outcome) == (merged.began, merged.outcome)
    assert abs(again.spent - merged.spent) < 1e-9


@given(records())
def test_one_alone_stays_what_it_is(record):
    merged = merged_phase([record])
    assert abs(merged.spent - record.spent) < 1e-9 * (1 + end_of(record))
    assert (merged.phase, merged.requested, merged.outcome, merged.detail) == (
        record.phase,
        record.requested,
        record.outcome,
        record.detail,
    )


@FEW
@given(
    st.lists(REPORTS, max_size=4),
    st.lists(st.sampled_from(Phase), unique=True, max_size=9),
)
def test_each_phase_that_a_report_has_is_there_once_and_in_order(reports, phases):
    had = {record.phase for report in reports for record in report.phases}
    merged = merged_phases(iter(reports), iter(phases))
    assert [one.phase for one in merged] == [one for one in phases if one in had]


@FEW
@given(st.lists(REPORTS, max_size=4))
def test_requests_are_summed_and_the_reports_stay(reports: Sequence[ShutdownReport]):
    before = [report.to_json() for report in reports]
    total = merged_requests(reports)
    assert total.completed == sum(one.requests.completed for one in reports)
    assert total.aborted == sum(one.requests.aborted for one in reports)
    assert total.refused == sum(one.requests.refused for one in reports)
    assert [report.to_json() for report in reports] == before


def test_no_report_is_no_record_and_no_request():
    assert merged_phases([], Phase) == []
    assert merged_requests([]) == RequestCounts()
