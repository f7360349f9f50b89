"""Who looks on is told of everything, and changes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vllm_ashutdown.core.budget import Budget
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.observer import Observer
from vllm_ashutdown.core.phase import Outcome, Phase, PhaseRecord
from vllm_ashutdown.core.report import ShutdownReport
from vllm_ashutdown.core.stop import Stop
from vllm_ashutdown.core.trigger import Trigger

WHY = Trigger.call("a test")


class Diary(Observer):
    def __init__(self) -> None:
        self.lines: list[Any] = []

    def entered(self, stop: Stop, phase: Phase) -> None:
        assert stop.phase is phase
        self.lines.append(("entered", phase))

    def left(self, stop: Stop, record: PhaseRecord) -> None:
        assert record in stop.records
        self.lines.append(("left", record.phase, record.outcome))

    def moved(self, stop: Stop) -> None:
        self.lines.append(("moved", stop.mode))

    def finished(self, stop: Stop, report: ShutdownReport) -> None:
        self.lines.append(report)


class Broken(Observer):
    def __init__(self) -> None:
        self.asked = 0

    def entered(self, stop: Stop, phase: Phase) -> None:
        self.asked += 1
        raise OSError("nobody listens")


def a_stop(*observers: Observer, mode: Mode = Mode.DRAIN) -> Stop:
    stop = Stop(mode, Budget.arm(60, 60), WHY)
    stop.observers = list(observers)
    return stop


async def nothing() -> None:
    pass


async def whole(stop: Stop) -> ShutdownReport:
    stop.do(Phase.ANNOUNCE, lambda: None)
    await stop.step(Phase.DRAIN, nothing)
    await stop.step(Phase.END, nothing)
    stop.finish()
    return await stop.join()


def test_it_is_told_of_each_phase_and_of_the_deadline_behind_the_drain(run):
    diary = Diary()
    stop = a_stop(diary)
    report = run(whole(stop))
    stop.conclude(report)
    assert diary.lines == [
        ("entered", Phase.ANNOUNCE),
        ("left", Phase.ANNOUNCE, Outcome.DONE),
        ("entered", Phase.DRAIN),
        ("moved", Mode.DRAIN),
        ("left", Phase.DRAIN, Outcome.DONE),
        ("entered", Phase.END),
        ("left", Phase.END, Outcome.DONE),
        report,
    ]


def test_a_skipped_phase_is_left_and_never_entered(run):
    diary = Diary()
    run(whole(a_stop(diary, mode=Mode.ABORT)))
    drain = [line for line in diary.lines if Phase.DRAIN in line]
    assert drain == [("left", Phase.DRAIN, Outcome.SKIPPED)]


def test_it_is_told_once_that_the_stop_was_raised(run):
    diary = Diary()
    stop = a_stop(diary)

    async def main() -> None:
        hanging = asyncio.ensure_future(stop.step(Phase.DRAIN, asyncio.Event().wait))
        await asyncio.sleep(0)
        stop.raise_to(Mode.ABORT, WHY)
        stop.raise_to(Mode.ABORT, WHY)
        await hanging

    run(main())
    assert diary.lines[:2] == [("entered", Phase.DRAIN), ("moved", Mode.ABORT)]
    assert diary.lines.count(("moved", Mode.ABORT)) == 2, "and that the drain is over"
    assert diary.lines[-1] == ("left", Phase.DRAIN, Outcome.RAISED)


def test_one_that_fails_is_one_warning_and_the_others_hear_on(run, log):
    diary, broken = Diary(), Broken()
    report = run(whole(a_stop(broken, diary)))
    assert broken.asked == 1
    assert ("left", Phase.END, Outcome.DONE) in diary.lines
    assert {record.outcome for record in report.phases} == {Outcome.DONE}
    warnings = [one for one in log.records if one.levelname == "WARNING"]
    assert [one.getMessage() for one in warnings] == [
        "[shutdown] Broken failed; the stop goes on without it"
    ]


@pytest.mark.parametrize("times", [1, 2])
def test_concluded_it_lets_them_go(run, times):
    diary = Diary()
    stop = a_stop(diary)
    report = run(whole(stop))
    for _ in range(times):
        stop.conclude(report)
    assert diary.lines.count(report) == 1
    assert stop.observers == []
