from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from tests.reports import SECONDS, a_report
from vllm_ashutdown.cli.render import WIDTH, render
from vllm_ashutdown.cli.words import span
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Outcome, Phase, PhaseRecord
from vllm_ashutdown.core.report import ProcessEnd, RequestCounts, ShutdownReport
from vllm_ashutdown.core.trigger import Trigger
from vllm_ashutdown.inventory import Row

LONG = "a detail that goes on and on, " * 12 + "to its last word"


def drawn(
    report: ShutdownReport, width: int = WIDTH, encoding: str = "utf-8"
) -> list[str]:
    sink = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=sink, width=width, color_system=None).print(render(report))
    sink.seek(0)
    return sink.read().splitlines()


def row(lines: list[str], phase: Phase) -> str:
    return next(line for line in lines if line.split()[:1] == [phase])


def bar(lines: list[str], phase: Phase) -> tuple[int, int]:
    """The bar's first column and the one behind its last."""
    line = row(lines, phase)
    cells = [at for at, cell in enumerate(line) if cell in "█▏"]
    return cells[0], cells[-1] + 1


@pytest.mark.parametrize("width", [80, 100, 250])
@pytest.mark.parametrize("detail", ["", "short", LONG, "x" * 400])
@pytest.mark.parametrize("outcome", list(Outcome))
def test_no_line_is_wider_than_the_screen_or_a_hundred_columns(width, detail, outcome):
    changed = {p: PhaseRecord(p, 1.0, s, outcome, detail) for p, s in SECONDS.items()}
    report = a_report(
        changed=changed,
        leftovers=("x" * 300,),
        processes=(ProcessEnd("N" * 200, 1, None),),
    )
    assert max(map(len, drawn(report, width))) <= min(width, WIDTH)


def test_each_phase_has_a_row_in_the_order():
    lines = drawn(a_report())
    assert [line.split()[0] for line in lines if line.split()[:1][:1]][2:11] == list(
        Phase
    )
    for phase in Phase:
        assert f"about {phase}" in row(lines, phase)


def test_a_phase_of_microseconds_has_a_mark():
    lines = drawn(a_report())
    for phase in (Phase.ANNOUNCE, Phase.ADMISSION, Phase.AUDIT):
        first, end = bar(lines, phase)
        assert end - first == 1


def test_bars_are_in_proportion_and_one_begins_where_the_other_ends():
    lines = drawn(a_report())
    drain, core = bar(lines, Phase.DRAIN), bar(lines, Phase.CORE)
    assert (drain[1] - drain[0]) / (core[1] - core[0]) == pytest.approx(2, abs=0.2)
    assert abs(core[0] - drain[1]) <= 1


def test_http_is_drawn_beside_the_core():
    lines = drawn(a_report())
    http, core = bar(lines, Phase.HTTP), bar(lines, Phase.CORE)
    assert http[0] == core[0]
    assert http[1] < core[1]


@pytest.mark.parametrize("seconds", [0.0, 9.01, 1e6])
def test_every_total_can_be_drawn(seconds):
    assert drawn(a_report(seconds=seconds))


def test_a_report_without_phases_can_be_drawn():
    report = ShutdownReport(
        Trigger.call("shutdown()"), Mode.ABORT, Mode.ABORT, 0.0, (), RequestCounts()
    )
    assert "call shutdown()" in "\n".join(drawn(report))


def test_a_drain_without_limit():
    record = PhaseRecord(Phase.DRAIN, math.inf, 1.0, Outcome.DONE)
    assert "no limit" in row(drawn(a_report(changed={Phase.DRAIN: record})), "drain")


def test_a_long_detail_of_a_success_takes_one_line():
    record = PhaseRecord(Phase.CORE, 1.0, 1.0, Outcome.DONE, LONG)
    assert len(drawn(a_report(changed={Phase.CORE: record}))) == len(drawn(a_report()))


def test_the_detail_of_a_failure_is_there_whole():
    record = PhaseRecord(Phase.CORE, 1.0, 1.0, Outcome.FAILED, LONG)
    lines = drawn(a_report(changed={Phase.CORE: record}))
    assert "FAILED" in row(lines, Phase.CORE)
    assert "last word" in "\n".join(lines)


def test_brackets_in_a_detail_are_no_markup():
    record = PhaseRecord(Phase.CORE, 1.0, 1.0, Outcome.DONE, "[red]x[/nope]")
    assert "[red]x[/nope]" in row(drawn(a_report(changed={Phase.CORE: record})), "core")


def test_words_say_what_colours_say():
    changed = {
        Phase.DRAIN: PhaseRecord(Phase.DRAIN, 6.0, 6.0, Outcome.EXPIRED),
        Phase.CORE: PhaseRecord(Phase.CORE, 0.0, 0.0, Outcome.SKIPPED),
        Phase.RELEASE: PhaseRecord(Phase.RELEASE, 1.0, 0.5, Outcome.RAISED),
    }
    lines = drawn(a_report(changed=changed, leftovers=("process X is alive",)))
    text = "\n".join(lines)
    assert "time was up" in row(lines, Phase.DRAIN)
    assert "skipped" in row(lines, Phase.CORE)
    assert "cut short" in row(lines, Phase.RELEASE)
    assert "NOT CLEAN" in text
    assert "process X is alive" in text


def test_what_came_of_requests_and_processes():
    text = "\n".join(drawn(a_report(final_mode=Mode.ABORT)))
    assert "8 completed, 2 ended, 1 refused" in text
    assert "EngineCore (pid 4711): exit 0" in text
    assert "drain, raised to abort" in text
    assert "nothing" in text


def test_each_kind_of_resource_before_and_after():
    rows = (
        Row("ipc files", ("a", "b"), ("b",), ("socket file b is there",)),
        Row("shared memory", ("psm_1",)),
        Row("device memory"),
    )
    text = "\n".join(drawn(a_report(inventory=rows)))
    assert "ipc files: 2 held, 1 now" in text
    assert "shared memory: 1 held, 0 now" in text
    assert "device memory" not in text, "there was none to give back"


def test_ascii_is_enough():
    record = PhaseRecord(Phase.CORE, 1.0, 36e-6, Outcome.DONE, "café " + LONG)
    lines = drawn(a_report(changed={Phase.CORE: record}), encoding="ascii")
    assert "=" in row(lines, Phase.DRAIN)
    assert all(line.isascii() for line in lines)


def test_a_process_is_said_to_have_ended_when_it_did():
    report = a_report(processes=(ProcessEnd("EngineCore", 7, 0, ended=8.25),))
    assert "EngineCore (pid 7): exit 0, after 8.25 s" in "\n".join(drawn(report))


def test_what_could_steer_a_terminal_is_escaped():
    report = a_report(leftovers=("file \x1b[2J\udcff is there",))
    text = "\n".join(drawn(report))
    assert "file \\x1b[2J\\udcff is there" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (1e-9, "1 µs"),
        (36e-6, "36 µs"),
        (999.4e-6, "999 µs"),
        (999.6e-6, "1 ms"),
        (0.01, "10 ms"),
        (0.1347, "135 ms"),
        (1.347, "1.35 s"),
        (9.999, "10 s"),
        (59.96, "60 s"),
        (60, "1 min"),
        (123, "2 min 3 s"),
        (math.inf, "no limit"),
    ],
)
def test_span(seconds, words):
    assert span(seconds) == words
