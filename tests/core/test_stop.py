"""One run, many joiners: each test is a way in which asyncio could break that."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from typing import Any

import anyio
import pytest

from vllm_ashutdown.core import budget as budget_module
from vllm_ashutdown.core.budget import Budget
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Outcome, Phase
from vllm_ashutdown.core.report import ShutdownReport
from vllm_ashutdown.core.stop import Stop
from vllm_ashutdown.core.trigger import Trigger

WHY = Trigger.call("a test")
SOON = 0.01
"""Seconds of a deadline that a test waits for."""

WAITING = (Phase.END, Phase.HANDLER, Phase.CORE, Phase.RELEASE)


def a_stop(
    mode: Mode = Mode.DRAIN, drain: float = 60.0, teardown: float = 60.0, **more: Any
) -> Stop:
    return Stop(mode, Budget.arm(drain, teardown), WHY, **more)


async def hang() -> None:
    await asyncio.get_running_loop().create_future()


async def nothing() -> None:
    pass


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def outcomes(stop: Stop) -> dict[Phase, Outcome]:
    found = {record.phase: record.outcome for record in stop.records}
    assert len(found) == len(stop.records), "one record a phase"
    return found


def on_a_thread(function: Any) -> Any:
    """Runs it on a thread; gives an awaitable for what it returns."""
    return asyncio.get_running_loop().run_in_executor(None, function)


class Run:
    """A drain that hangs until it is cut, then a core that goes when it is let."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop
        self.core_begun = asyncio.Event()
        self.core_may_go = asyncio.Event()
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            await self.stop.step(Phase.DRAIN, hang)
            await self.stop.step(Phase.CORE, self._core)
        finally:
            self.stop.finish()

    async def _core(self) -> None:
        self.core_begun.set()
        await self.core_may_go.wait()


# -- joining -----------------------------------------------------------------------


def test_joiners_on_any_loop_and_any_thread_get_the_one_report(run):
    stop = a_stop()

    async def main() -> list[ShutdownReport]:
        here = [asyncio.ensure_future(stop.join()) for _ in range(3)]
        there = [
            on_a_thread(lambda: asyncio.run(stop.join())),
            on_a_thread(lambda: stop.wait(20)),
        ]
        await turns()
        assert not any(one.done() for one in (*here, *there))
        stop.finish()
        return await asyncio.gather(*here, *there, stop.join())

    reports = run(main())
    assert len(reports) == 6
    assert all(one is reports[0] for one in reports)
    assert stop.wait(0) is reports[0]


def test_a_thread_that_waits_gives_up_when_its_time_is_out():
    stop = a_stop()
    began = time.monotonic()
    assert stop.wait(SOON) is None
    assert time.monotonic() - began < 10
    stop.finish()
    assert stop.wait(0) is not None


def test_the_report_says_what_the_stop_was(run):
    stop = a_stop(Mode.DRAIN)

    async def main() -> ShutdownReport:
        stop.do(Phase.ANNOUNCE, lambda: "loud")
        stop.requests.completed = 3
        stop.leftovers.append("a thing")
        stop.raise_to(Mode.ABORT, WHY)
        stop.finish()
        return await stop.join()

    report = run(main())
    assert (report.trigger, report.mode, report.final_mode) == (
        WHY,
        Mode.DRAIN,
        Mode.ABORT,
    )
    assert [(one.phase, one.detail) for one in report.phases] == [
        (Phase.ANNOUNCE, "loud")
    ]
    assert report.requests.completed == 3
    assert report.leftovers == ("a thing",)
    assert 0 <= report.seconds < 20


def test_a_cancelled_joiner_leaves_a_finished_stop_behind_and_stays_cancelled(run):
    stop = a_stop()

    async def main() -> None:
        it = Run(stop)
        joiner = asyncio.ensure_future(stop.join())
        other = asyncio.ensure_future(stop.join())
        await turns()
        assert stop.mode is Mode.DRAIN
        joiner.cancel()
        await it.core_begun.wait()
        assert stop.mode is Mode.ABORT
        await turns()
        assert not joiner.done(), "it was let go while the core was half stopped"
        joiner.cancel()  # impatience changes nothing
        await turns()
        assert not joiner.done()
        it.core_may_go.set()
        await asyncio.wait([joiner])
        assert joiner.cancelled()
        assert stop.outcome.done()
        assert (await other).final_mode is Mode.ABORT

    run(main())
    assert outcomes(stop) == {Phase.DRAIN: Outcome.RAISED, Phase.CORE: Outcome.DONE}


def test_a_joiner_that_is_not_cancelled_leaves_the_mode_alone(run):
    stop = a_stop()

    async def main() -> None:
        joiner = asyncio.ensure_future(stop.join())
        await turns()
        stop.finish()
        report = await joiner
        assert report.final_mode is Mode.DRAIN

    run(main())


def test_a_cancelled_joiner_does_not_lower_a_kill(run):
    stop = a_stop(Mode.KILL, drain=0.0)

    async def main() -> None:
        joiner = asyncio.ensure_future(stop.join())
        await turns()
        joiner.cancel()
        await turns()
        stop.finish()
        await asyncio.wait([joiner])
        assert joiner.cancelled()

    run(main())
    assert stop.mode is Mode.KILL


def test_a_joiner_under_a_timeout_gets_the_timeout_after_the_end(run):
    stop = a_stop()

    async def main() -> None:
        it = Run(stop)
        it.core_may_go.set()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SOON):
                await stop.join()
        assert stop.outcome.done()
        assert asyncio.current_task().cancelling() == 0
        await it.task

    run(main())


def test_a_joiner_in_a_cancel_scope_is_caught_by_it_after_the_end(run):
    stop = a_stop()

    async def main() -> None:
        it = Run(stop)
        it.core_may_go.set()
        with anyio.move_on_after(SOON) as scope:
            await stop.join()
        assert scope.cancelled_caught
        assert stop.outcome.done()
        await it.task

    run(main())


def test_no_joiner_can_cancel_the_outcome(run):
    stop = a_stop()

    async def main() -> None:
        assert not stop.outcome.cancel()
        waiter = asyncio.ensure_future(asyncio.wrap_future(stop.outcome))
        await turns()
        waiter.cancel()
        await asyncio.wait([waiter])
        assert stop.outcome.running()
        stop.finish()
        assert stop.outcome.result().mode is Mode.DRAIN

    run(main())


# -- raising -----------------------------------------------------------------------


@pytest.mark.parametrize("before", Mode)
@pytest.mark.parametrize("to", Mode)
def test_a_stop_only_goes_up(before, to, log):
    heard: list[Mode] = []
    stop = a_stop(before, drain=0.0, raised=heard.append)
    went_up = stop.raise_to(to, WHY)
    assert went_up is (to > before)
    assert stop.mode is max(before, to)
    assert heard == ([to] if went_up else [])
    assert ("raised from" in log.text) is went_up
    assert stop.first_mode is before


def test_a_stop_that_is_over_is_not_raised(log):
    heard: list[Mode] = []
    stop = a_stop(raised=heard.append)
    stop.finish()
    assert not stop.raise_to(Mode.KILL, WHY)
    assert (stop.mode, heard, log.text) == (Mode.DRAIN, [], "")


def test_a_raise_cuts_a_drain_short(run):
    stop = a_stop()

    async def main() -> None:
        draining = asyncio.ensure_future(stop.step(Phase.DRAIN, hang))
        await turns()
        assert not draining.done()
        stop.raise_to(Mode.ABORT, WHY)
        await draining

    run(main())
    assert outcomes(stop) == {Phase.DRAIN: Outcome.RAISED}
    assert stop.budget.remaining() <= 60.0


def test_a_raise_from_another_thread_cuts_a_drain_short(run):
    stop = a_stop()

    async def main() -> None:
        draining = asyncio.ensure_future(stop.step(Phase.DRAIN, hang))
        await turns()
        assert await on_a_thread(lambda: stop.raise_to(Mode.KILL, WHY))
        await draining

    run(main())
    assert outcomes(stop) == {Phase.DRAIN: Outcome.RAISED}


@pytest.mark.parametrize("moment", [1, 2])
def test_a_raise_in_the_moment_in_which_a_drain_begins_is_not_lost(run, moment):
    stop = a_stop()

    class Clock:
        """A signal comes on another thread just when the step reads the clock."""

        def __init__(self) -> None:
            self.calls = 0

        def __call__(self) -> float:
            self.calls += 1
            if self.calls == moment:
                raising = threading.Thread(target=stop.raise_to, args=(Mode.ABORT, WHY))
                raising.start()
                raising.join(10)
            return time.monotonic()

    async def main() -> None:
        stop.budget = Budget(60.0, 60.0, time.monotonic(), Clock())
        draining = asyncio.ensure_future(stop.step(Phase.DRAIN, hang))
        await asyncio.wait([draining], timeout=1)
        assert stop.mode is Mode.ABORT
        assert draining.done(), "it drains on for its whole deadline"

    run(main())


def test_a_raise_before_the_drain_skips_it(run):
    stop = a_stop()
    stop.raise_to(Mode.ABORT, WHY)
    run(stop.step(Phase.DRAIN, hang))
    assert outcomes(stop) == {Phase.DRAIN: Outcome.SKIPPED}


@pytest.mark.parametrize("phase", WAITING)
def test_a_raise_lets_any_other_step_finish(run, phase):
    stop = a_stop()

    async def main() -> None:
        go = asyncio.Event()
        working = asyncio.ensure_future(stop.step(phase, go.wait))
        await turns()
        stop.raise_to(Mode.ABORT, WHY)
        await turns()
        assert not working.done()
        go.set()
        await working

    run(main())
    assert outcomes(stop) == {phase: Outcome.DONE}


@pytest.mark.parametrize("phase", WAITING)
def test_a_raise_to_kill_moves_the_deadline_of_a_step_that_hangs(
    run, phase, monkeypatch
):
    monkeypatch.setattr(budget_module, "KILL_SECONDS", SOON)
    stop = a_stop()

    async def main() -> None:
        working = asyncio.ensure_future(stop.step(phase, hang))
        await turns()
        assert not working.done()
        stop.raise_to(Mode.KILL, WHY)
        await working

    run(main())
    assert outcomes(stop) == {phase: Outcome.EXPIRED}


def test_without_a_loop_nothing_drains():
    stop = a_stop(drain=30.0, teardown=10.0)
    stop.cannot_drain()
    assert stop.mode is Mode.ABORT
    assert stop.budget.remaining() <= 10.0
    hard = a_stop(Mode.KILL, drain=0.0)
    hard.cannot_drain()
    assert hard.mode is Mode.KILL


# -- steps that do not go well -----------------------------------------------------


def test_a_step_says_what_it_did_and_how_long_it_took(run):
    stop = a_stop(teardown=10.0)

    async def work() -> str:
        await asyncio.sleep(SOON)
        return "three things"

    run(stop.step(Phase.CORE, work))
    (record,) = stop.records
    assert (record.outcome, record.detail) == (Outcome.DONE, "three things")
    assert 0 < record.requested <= 70
    assert SOON / 2 <= record.spent < 10
    assert record.began >= 0


@pytest.mark.parametrize("phase", WAITING)
def test_a_step_that_hangs_expires_and_the_next_one_runs(run, phase, log):
    stop = a_stop(Mode.ABORT, drain=0.0, teardown=SOON)

    async def main() -> None:
        await stop.step(phase, hang)
        stop.budget = Budget.arm(0.0, 60.0)
        await stop.step(Phase.AUDIT, nothing)

    run(main())
    assert outcomes(stop) == {phase: Outcome.EXPIRED, Phase.AUDIT: Outcome.DONE}
    levels = {one.levelno for one in log.records if f"{phase} expired" in one.message}
    assert levels == {logging.WARNING}


def test_a_drain_whose_deadline_comes_is_no_fault_and_abort_follows(run, log):
    stop = a_stop(drain=SOON)
    run(stop.step(Phase.DRAIN, hang))
    assert outcomes(stop) == {Phase.DRAIN: Outcome.EXPIRED}
    assert (stop.first_mode, stop.mode) == (Mode.DRAIN, Mode.ABORT)
    assert "drain expired" in log.text
    assert max(one.levelno for one in log.records) == logging.INFO


def test_a_drain_that_ends_early_gives_its_time_to_nobody(run):
    stop = a_stop(drain=500.0, teardown=10.0)
    run(stop.step(Phase.DRAIN, nothing))
    assert outcomes(stop) == {Phase.DRAIN: Outcome.DONE}
    assert stop.mode is Mode.DRAIN
    assert stop.budget.remaining() <= 10.0


@pytest.mark.parametrize("phase", [Phase.DRAIN, *WAITING])
def test_a_step_that_raises_fails_loudly_and_the_next_one_runs(run, phase, log):
    stop = a_stop()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError("no such core")

    async def main() -> None:
        await stop.step(phase, fail)
        await stop.step(Phase.AUDIT, nothing)

    run(main())
    assert outcomes(stop) == {phase: Outcome.FAILED, Phase.AUDIT: Outcome.DONE}
    assert stop.records[0].detail == "LookupError: no such core"
    (error,) = (one for one in log.records if one.levelno >= logging.ERROR)
    assert error.exc_info is not None
    assert error.exc_info[0] is LookupError


def test_a_step_that_goes_well_logs_no_more_than_information(run, log):
    stop = a_stop()

    async def main() -> None:
        await stop.step(Phase.DRAIN, nothing)
        await stop.step(Phase.CORE, nothing)
        stop.do(Phase.AUDIT, lambda: None)
        stop.finish()

    run(main())
    assert set(outcomes(stop).values()) == {Outcome.DONE}
    assert {one.levelno for one in log.records} == {logging.INFO}


def test_a_blocking_step_that_raises_fails_loudly_and_the_next_one_runs(log):
    stop = a_stop()

    def fail() -> None:
        raise LookupError("no such gate")

    stop.do(Phase.ANNOUNCE, fail)
    stop.do(Phase.ADMISSION, lambda: "shut")
    assert outcomes(stop) == {
        Phase.ANNOUNCE: Outcome.FAILED,
        Phase.ADMISSION: Outcome.DONE,
    }
    assert [one.detail for one in stop.records] == ["LookupError: no such gate", "shut"]
    assert [one.levelno for one in log.records if one.exc_info] == [logging.ERROR]


def test_a_step_that_is_cancelled_by_its_own_doing_fails(run):
    stop = a_stop()
    entered = 0

    async def awaits_what_was_cancelled() -> None:
        nonlocal entered
        entered += 1
        if entered > 100:
            return  # or it would hold the loop for ever
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    run(stop.step(Phase.HANDLER, awaits_what_was_cancelled))
    assert entered < 100, "it is entered again and again, and the loop never turns"
    assert outcomes(stop) == {Phase.HANDLER: Outcome.FAILED}


# -- a loop that is torn down ------------------------------------------------------


class Steps:
    """All waiting steps; one of them hangs the first time that it is entered."""

    def __init__(self, stop: Stop, hanging: Phase) -> None:
        self.stop, self.hanging = stop, hanging
        self.entered: list[Phase] = []
        self.hangs = asyncio.Event()

    async def run(self) -> None:
        try:
            for phase in (Phase.DRAIN, *WAITING):
                await self.stop.step(phase, lambda phase=phase: self.enter(phase))
        finally:
            self.stop.finish()

    async def enter(self, phase: Phase) -> None:
        self.entered.append(phase)
        if phase is self.hanging and self.entered.count(phase) == 1:
            self.hangs.set()
            await hang()


@pytest.mark.parametrize("hanging", [Phase.DRAIN, *WAITING])
def test_every_step_runs_although_the_loop_is_torn_down(run, hanging):
    stop = a_stop()
    steps = None

    async def main() -> asyncio.Task[None]:
        nonlocal steps
        steps = Steps(stop, hanging)
        task = asyncio.ensure_future(steps.run())
        await steps.hangs.wait()
        return task  # and with it the loop ends, which cancels every task

    task = run(main())
    assert not task.cancelled()
    assert task.exception() is None
    assert stop.outcome.done()
    assert stop.mode is Mode.ABORT
    wanted = dict.fromkeys((Phase.DRAIN, *WAITING), Outcome.DONE)
    if hanging is Phase.DRAIN:
        wanted[Phase.DRAIN] = Outcome.RAISED  # there is nothing to drain for
    assert outcomes(stop) == wanted
    entered = steps.entered
    assert entered.count(hanging) == (1 if hanging is Phase.DRAIN else 2)
    assert list(dict.fromkeys(entered)) == [Phase.DRAIN, *WAITING]


def test_a_run_that_is_cancelled_again_and_again_still_ends(run):
    stop = a_stop()

    async def main() -> None:
        it = Run(stop)
        await turns()
        for _ in range(10):
            it.task.cancel()
            await turns(2)
        await it.core_begun.wait()
        assert not it.task.done()
        it.core_may_go.set()
        await it.task
        assert it.task.cancelling() == 0

    run(main())
    assert outcomes(stop) == {Phase.DRAIN: Outcome.RAISED, Phase.CORE: Outcome.DONE}


def test_two_cancellations_at_once_are_no_more_than_one(run):
    stop = a_stop(Mode.ABORT, drain=0.0)

    async def main() -> None:
        steps = Steps(stop, Phase.CORE)
        task = asyncio.ensure_future(steps.run())
        await steps.hangs.wait()
        task.cancel()
        task.cancel()
        await task

    run(main())
    assert outcomes(stop)[Phase.RELEASE] is Outcome.DONE


@pytest.mark.parametrize("first", ["cancel", "raise"])
def test_a_cancellation_in_the_turn_of_a_raise_still_ends_every_step(run, first):
    stop = a_stop()

    async def main() -> None:
        it = Run(stop)
        it.core_may_go.set()
        await turns()
        loop = asyncio.get_running_loop()
        if first == "cancel":
            loop.call_soon(it.task.cancel)
        stop.raise_to(Mode.ABORT, WHY)  # cuts the drain in the next turn
        if first == "raise":
            loop.call_soon(it.task.cancel)
        await asyncio.wait([it.task])

    run(main())
    assert outcomes(stop) == {Phase.DRAIN: Outcome.RAISED, Phase.CORE: Outcome.DONE}


def test_a_cancellation_while_a_step_makes_way_still_ends_every_step(run):
    stop = a_stop()

    async def main() -> None:
        makes_way = asyncio.Event()

        async def drain() -> None:
            try:
                await hang()
            finally:
                makes_way.set()
                with anyio.CancelScope(shield=True):
                    await turns()

        async def whole() -> None:
            try:
                await stop.step(Phase.DRAIN, drain)
                await stop.step(Phase.CORE, nothing)
            finally:
                stop.finish()

        task = asyncio.ensure_future(whole())
        await turns()
        stop.raise_to(Mode.ABORT, WHY)
        await makes_way.wait()
        task.cancel()
        await asyncio.wait([task])

    run(main())
    assert outcomes(stop)[Phase.CORE] is Outcome.DONE


def test_an_expired_step_leaves_no_cancellation_behind(run):
    stop = a_stop(Mode.ABORT, drain=0.0, teardown=SOON)

    async def main() -> None:
        await stop.step(Phase.CORE, hang)
        assert asyncio.current_task().cancelling() == 0
        await turns()

    run(main())


# -- the end -----------------------------------------------------------------------


def test_to_finish_twice_is_to_finish_once():
    stop = a_stop()
    stop.finish()
    report = stop.outcome.result()
    stop.do(Phase.AUDIT, lambda: None)
    stop.finish()
    assert stop.outcome.result() is report
    assert report.phases == ()


def test_to_finish_on_two_threads_at_once_is_to_finish_once():
    stop = a_stop()
    nested: list[float] = []

    def clock() -> float:
        if not nested:  # the other thread comes in between
            nested.append(1.0)
            stop.finish()
        return 0.0

    stop.budget = Budget(0.0, 60.0, 0.0, clock)
    stop.finish()
    assert stop.outcome.result().mode is Mode.DRAIN


def test_what_is_over_holds_nothing_of_the_engine(run):
    class Engine:
        def raised(self, mode: Mode) -> None: ...

    engine = Engine()
    stop = a_stop(raised=engine.raised)
    run(stop.step(Phase.CORE, nothing))
    stop.finish()
    stop.forget()
    there = weakref.ref(engine)
    del engine
    gc.collect()
    assert there() is None
    assert stop.wait(0) is not None, "the report stays"


# -- quiet -------------------------------------------------------------------------


def test_quiet_comes_with_the_end_of_the_handler_and_not_before(run):
    stop = a_stop(Mode.ABORT, drain=0.0)

    async def main() -> None:
        waiters = [asyncio.ensure_future(stop.quiet()) for _ in range(2)]
        await stop.step(Phase.DRAIN, nothing)
        await stop.step(Phase.END, nothing)
        await turns()
        assert not any(one.done() for one in waiters)
        over = asyncio.Event()
        handler = asyncio.ensure_future(stop.step(Phase.HANDLER, over.wait))
        await turns()
        assert not any(one.done() for one in waiters)
        over.set()
        await handler
        await asyncio.gather(*waiters)
        assert not stop.outcome.done(), "the core is still at it"
        await stop.quiet()

    run(main())


@pytest.mark.parametrize("how", ["expired", "failed"])
def test_quiet_comes_although_the_handler_made_trouble(run, how):
    stop = a_stop(Mode.ABORT, drain=0.0, teardown=SOON)

    async def fail() -> None:
        raise LookupError

    async def main() -> None:
        waiter = asyncio.ensure_future(stop.quiet())
        await turns()
        await stop.step(Phase.HANDLER, hang if how == "expired" else fail)
        await waiter

    run(main())
    assert outcomes(stop) == {Phase.HANDLER: Outcome(how)}


def test_quiet_comes_at_the_end_at_the_latest(run):
    stop = a_stop()

    async def main() -> None:
        waiter = asyncio.ensure_future(stop.quiet())
        other = asyncio.ensure_future(stop.quiet())
        await turns()
        other.cancel()
        await turns()
        await on_a_thread(stop.finish)
        await waiter
        assert other.cancelled()

    run(main())


def test_a_loop_that_was_closed_under_a_waiter_costs_no_one_the_report():
    stop = a_stop()
    loop = asyncio.new_event_loop()
    waiter = loop.create_task(stop.quiet())
    joiner = loop.create_task(stop.join())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    for abandoned in (waiter, joiner):
        abandoned._log_destroy_pending = False
    stop.finish()
    assert stop.outcome.done()


def test_quiet_is_not_missed_when_it_comes_from_another_thread_just_then():
    stop = a_stop()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        create_future = loop.create_future

        def late() -> Any:
            finishing = threading.Thread(target=stop.finish)
            finishing.start()
            finishing.join(10)
            return create_future()

        loop.create_future = late  # between the look and the wait
        try:
            await asyncio.wait_for(stop.quiet(), 5)
        finally:
            loop.create_future = create_future

    asyncio.run(main())
