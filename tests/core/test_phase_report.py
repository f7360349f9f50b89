from __future__ import annotations

import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Outcome, Phase, PhaseRecord
from vllm_ashutdown.core.report import ProcessEnd, RequestCounts, ShutdownReport
from vllm_ashutdown.core.trigger import Trigger, TriggerKind

SECONDS = st.floats(0, 1e6)
COUNT = st.integers(0, 10**6)


PLAIN_PHASE = {
    "phase": "core",
    "requested": 1.0,
    "spent": 0.5,
    "outcome": "done",
    "detail": "",
    "began": 0.0,
}
PLAIN_PROCESS = {"name": "EngineCore", "pid": 7, "exitcode": 0, "killed": False}


def done(phase: Phase, outcome: Outcome = Outcome.DONE) -> PhaseRecord:
    return PhaseRecord(phase, 1.0, 0.5, outcome)


def a_report(**changed: object) -> ShutdownReport:
    values: dict[str, object] = {
        "trigger": Trigger.call("ashutdown()"),
        "mode": Mode.ABORT,
        "final_mode": Mode.ABORT,
        "seconds": 0.25,
        "phases": tuple(done(phase) for phase in Phase if phase is not Phase.HTTP),
        "requests": RequestCounts(),
        "processes": (ProcessEnd("EngineCore", 4711, 0),),
    }
    return ShutdownReport(**(values | changed))  # type: ignore[arg-type]


REPORTS = st.builds(
    a_report,  # the class itself would be asked for its types, and one is not there
    trigger=st.builds(Trigger, st.sampled_from(TriggerKind), st.text()),
    mode=st.sampled_from(Mode),
    final_mode=st.sampled_from(Mode),
    seconds=SECONDS,
    phases=st.lists(
        st.builds(
            PhaseRecord,
            st.sampled_from(Phase),
            st.one_of(SECONDS, st.just(math.inf)),
            SECONDS,
            st.sampled_from(Outcome),
            st.text(),
            SECONDS,
        ),
        max_size=4,
    ).map(tuple),
    requests=st.builds(RequestCounts, COUNT, COUNT, COUNT),
    processes=st.lists(
        st.builds(
            ProcessEnd,
            st.text(),
            COUNT,
            st.one_of(st.none(), st.integers(-64, 255)),
            st.booleans(),
            st.one_of(st.none(), SECONDS),
        ),
        max_size=3,
    ).map(tuple),
    leftovers=st.lists(st.text(), max_size=3).map(tuple),
)


def test_the_phases_are_named_in_the_order():
    assert " ".join(Phase) == (
        "announce admission drain end handler core release http audit"
    )


# -- JSON ------------------------------------------------------------------------


@given(REPORTS)
def test_a_report_survives_json(report):
    text = report.to_json()
    assert "\n" not in text
    again = ShutdownReport.from_json(text)
    assert again == report
    ended = [process.ended for process in report.processes]
    assert [process.ended for process in again.processes] == ended


def test_a_report_from_before_ends_had_a_time_is_read():
    data = json.loads(a_report().to_json())
    del data["processes"][0]["ended"]
    assert ShutdownReport.from_json(json.dumps(data)).processes[0].ended is None


def test_json_has_words_for_modes_and_null_for_no_limit():
    drain = PhaseRecord(Phase.DRAIN, math.inf, 3.0, Outcome.DONE)
    report = a_report(mode=Mode.DRAIN, final_mode=Mode.KILL, phases=(drain,))
    data = json.loads(report.to_json(), parse_constant=pytest.fail)
    assert (data["mode"], data["final_mode"]) == ("drain", "kill")
    assert data["phases"][0]["requested"] is None
    assert data["phases"][0]["spent"] == 3.0


def test_json_can_be_written_whatever_a_file_is_called():
    path = os.fsdecode(b"/tmp/\xff")
    report = a_report(leftovers=(f"file {path} is there",))
    written = report.to_json().encode()
    assert ShutdownReport.from_json(written.decode()) == report


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "7", "[]", "{}", '"report"', "[{}]"],
)
def test_what_is_no_report_is_refused(text):
    with pytest.raises(ValueError, match="not a shutdown report"):
        ShutdownReport.from_json(text)


@pytest.mark.parametrize("missing", ShutdownReport.__struct_fields__)
def test_a_report_with_a_part_missing_is_refused(missing):
    data = json.loads(a_report().to_json())
    del data[missing]
    with pytest.raises(ValueError, match=f"not a shutdown report.*{missing}"):
        ShutdownReport.from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("trigger", "signal SIGTERM"),
        ("trigger", {"kind": "whim", "detail": ""}),
        ("mode", "stop"),
        ("mode", None),
        ("final_mode", 2),
        ("seconds", None),
        ("seconds", "soon"),
        ("phases", 7),
        ("phases", [{"phase": "coffee"}]),
        ("requests", {"completed": 0, "lost": 1}),
        ("requests", []),
        ("processes", [{"name": "EngineCore"}]),
        ("leftovers", None),
        ("leftovers", "one line"),
        ("leftovers", [7]),
        ("seconds", math.nan),
        ("phases", [{**PLAIN_PHASE, "spent": "long"}]),
        ("phases", [{**PLAIN_PHASE, "began": math.inf}]),
        ("phases", [{**PLAIN_PHASE, "detail": None}]),
        ("processes", [{**PLAIN_PROCESS, "name": 7}]),
        ("processes", [{**PLAIN_PROCESS, "pid": "first"}]),
        ("processes", [{**PLAIN_PROCESS, "ended": math.nan}]),
    ],
)
def test_a_report_with_a_part_that_means_nothing_is_refused(part, value):
    data = json.loads(a_report().to_json())
    data[part] = value
    with pytest.raises(ValueError, match="not a shutdown report"):
        ShutdownReport.from_json(json.dumps(data))


# -- clean -----------------------------------------------------------------------


def test_a_stop_that_did_everything_is_clean():
    assert a_report().clean
    assert a_report(processes=()).clean


def test_a_leftover_is_not_clean():
    assert not a_report(leftovers=("process EngineCore (pid 1) is alive",)).clean


def in_place(record: PhaseRecord) -> ShutdownReport:
    """A report with ``record`` instead of its phase's own."""
    phases = (done(phase) for phase in Phase)
    return a_report(
        phases=tuple(record if one.phase is record.phase else one for one in phases)
    )


@pytest.mark.parametrize("phase", Phase)
def test_a_phase_that_failed_is_not_clean(phase):
    assert not in_place(done(phase, Outcome.FAILED)).clean


@pytest.mark.parametrize("phase", Phase)
def test_a_phase_that_expired_is_not_clean_unless_it_is_the_drain(phase):
    clean = in_place(done(phase, Outcome.EXPIRED)).clean
    assert clean is (phase is Phase.DRAIN)


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.SKIPPED, Outcome.RAISED])
def test_a_drain_that_was_skipped_or_cut_short_is_clean(outcome):
    assert in_place(done(Phase.DRAIN, outcome)).clean


@pytest.mark.parametrize(
    ("end", "clean", "words"),
    [
        (ProcessEnd("EngineCore", 7, 0), True, "EngineCore (pid 7): exit 0"),
        (ProcessEnd("EngineCore", 7, 1), False, "EngineCore (pid 7): exit 1"),
        (ProcessEnd("W", 7, -15), False, "W (pid 7): ended by signal 15"),
        (ProcessEnd("W", 7, None), False, "W (pid 7): still alive"),
        (ProcessEnd("W", 7, None, killed=True), False, "W (pid 7): still alive"),
        (
            ProcessEnd("W", 7, -9, killed=True),
            False,
            "W (pid 7): killed: outlasted its share of the budget",
        ),
        # It left by itself in the moment of the kill: nobody can know it was clean.
        (
            ProcessEnd("W", 7, 0, killed=True),
            False,
            "W (pid 7): killed: outlasted its share of the budget",
        ),
    ],
)
def test_how_a_process_ended(end, clean, words):
    assert end.clean is clean
    assert str(end) == words
    assert a_report(processes=(ProcessEnd("other", 1, 0), end)).clean is clean


def test_why_it_is_not_clean_is_said_once_for_each_reason():
    failed = PhaseRecord(Phase.CORE, 1.0, 0.5, Outcome.FAILED, "OSError: no")
    report = a_report(
        phases=(failed, done(Phase.RELEASE, Outcome.EXPIRED)),
        processes=(ProcessEnd("fine", 1, 0), ProcessEnd("W", 7, -15)),
        leftovers=("file x is there",),
    )
    assert report.problems == (
        "phase core failed: OSError: no",
        "phase release used up its time",
        "it did not come to its end: nothing was audited",
        "W (pid 7): ended by signal 15",
        "file x is there",
    )
    assert a_report().problems == ()


def test_the_end_of_a_process_is_counted_from_the_trigger():
    ends = [
        ProcessEnd("W", 7, 0, ended=at).since(100.0).ended for at in (102.5, 99, None)
    ]
    assert ends == [2.5, 0.0, None], "one that died before was over at the trigger"


# -- the rest --------------------------------------------------------------------


def test_the_summary_is_one_line_with_everything_that_counts():
    report = a_report(
        trigger=Trigger.signal(15),
        mode=Mode.DRAIN,
        final_mode=Mode.DRAIN,
        requests=RequestCounts(3, 2, 1),
    )
    assert report.summary == (
        "signal SIGTERM, drain; requests 3 completed, 2 ended, 1 refused; nothing left"
    )


def test_the_summary_tells_of_a_raise_and_of_leftovers():
    summary = a_report(
        mode=Mode.DRAIN, final_mode=Mode.ABORT, leftovers=("a", "b")
    ).summary
    assert "drain, raised to abort;" in summary
    assert summary.endswith("; a; b")


def test_http_goes_before_the_audit_and_nothing_else_moves():
    report = a_report()
    http = done(Phase.HTTP)
    whole = report.with_http(http, 0.75)
    assert [one.phase for one in whole.phases] == list(Phase)
    assert whole.seconds == 0.75
    assert structs.replace(
        whole,
        phases=tuple(one for one in whole.phases if one is not http),
        seconds=report.seconds,
    ) == (report)
    assert report == a_report(), "the engine's own report is not changed"


def test_http_comes_last_where_there_was_no_audit():
    report = a_report(phases=(done(Phase.CORE), done(Phase.RELEASE)))
    phases = [one.phase for one in report.with_http(done(Phase.HTTP), 1.0).phases]
    assert phases == [Phase.CORE, Phase.RELEASE, Phase.HTTP]


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        (Trigger.signal(2), "signal SIGINT"),
        (Trigger.call("shutdown()"), "call shutdown()"),
        (Trigger.death("EngineCore"), "death EngineCore"),
    ],
)
def test_a_trigger_says_what_asked(trigger, words):
    assert str(trigger) == words
