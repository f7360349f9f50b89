from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_ashutdown.core.budget import Budget
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.order import core_seconds, shut_down, shut_down_here
from vllm_ashutdown.core.phase import Outcome, Phase
from vllm_ashutdown.core.report import ShutdownReport
from vllm_ashutdown.core.stop import Detail, Stop
from vllm_ashutdown.core.trigger import Trigger

WHY = Trigger.call("a test")

ON_THE_LOOP = (
    "announce",
    "close_admission",
    "drained",
    "end_requests",
    "handler_stopped",
    "core_stopped",
    "released",
    "audit",
)
WITHOUT_A_LOOP = (
    "announce",
    "close_admission",
    "end_requests",
    "cancel_handler",
    "stop_core",
    "release",
    "audit",
)
PHASES = tuple(phase for phase in Phase if phase is not Phase.HTTP)
PHASE_OF = {
    **dict(zip(ON_THE_LOOP, PHASES, strict=True)),
    "cancel_handler": Phase.HANDLER,
    "stop_core": Phase.CORE,
    "release": Phase.RELEASE,
}


class Engine:
    """A Stoppable that writes down what is called.

    Attributes:
        calls: Every entry and, as ``NAME over``, every end of a step that waits.
        failing: Names of the steps that raise.
        wait: What a step that waits does, by its name.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing: set[str] = set()
        self.wait: dict[str, Callable[[], Any]] = {}
        self.slices = 0
        self.core_seconds: list[float] = []

    @property
    def entered(self) -> list[str]:
        return [call for call in self.calls if not call.endswith(" over")]

    def _enter(self, name: str) -> Detail:
        self.calls.append(name)
        if name in self.failing:
            raise LookupError(name)
        return name

    async def _wait(self, name: str) -> Detail:
        self._enter(name)
        await self.wait.get(name, self._no_wait)()
        self.calls.append(f"{name} over")
        return name

    async def _no_wait(self) -> None:
        pass

    def announce(self) -> Detail:
        return self._enter("announce")

    def close_admission(self) -> Detail:
        return self._enter("close_admission")

    async def drained(self) -> Detail:
        return await self._wait("drained")

    def end_requests(self) -> Generator[None, None, Detail]:
        self._enter("end_requests")
        for number in range(self.slices):
            self.calls.append(f"slice {number}")
            yield
        return "end_requests"

    def cancel_handler(self) -> Detail:
        return self._enter("cancel_handler")

    async def handler_stopped(self) -> Detail:
        return await self._wait("handler_stopped")

    async def core_stopped(self, seconds: float) -> Detail:
        self.core_seconds.append(seconds)
        return await self._wait("core_stopped")

    def stop_core(self, seconds: float) -> Detail:
        self.core_seconds.append(seconds)
        return self._enter("stop_core")

    async def released(self) -> Detail:
        return await self._wait("released")

    def release(self) -> Detail:
        return self._enter("release")

    def audit(self) -> Detail:
        return self._enter("audit")


def a_stop(mode: Mode = Mode.DRAIN, **more: Any) -> Stop:
    drain = 60.0 if mode is Mode.DRAIN else 0.0
    return Stop(mode, Budget.arm(drain, 60.0, **more), WHY)


def test_the_order_of_a_drain(run):
    engine, stop = Engine(), a_stop(Mode.DRAIN)
    run(shut_down(engine, stop))
    assert engine.entered == list(ON_THE_LOOP)
    report = stop.outcome.result()
    assert [one.phase for one in report.phases] == list(PHASES)
    assert {one.outcome for one in report.phases} == {Outcome.DONE}
    assert [one.detail for one in report.phases] == list(ON_THE_LOOP)
    assert report.clean


@pytest.mark.parametrize("mode", [Mode.ABORT, Mode.KILL])
def test_the_order_of_an_abort_is_the_same_without_the_drain(run, mode):
    engine, stop = Engine(), a_stop(mode)
    run(shut_down(engine, stop))
    assert engine.entered == [name for name in ON_THE_LOOP if name != "drained"]
    report = stop.outcome.result()
    assert [one.phase for one in report.phases] == list(PHASES)
    skipped = [one.phase for one in report.phases if one.outcome is Outcome.SKIPPED]
    assert skipped == [Phase.DRAIN]


@pytest.mark.parametrize("mode", [Mode.ABORT, Mode.KILL])
def test_the_order_where_no_loop_turns(mode):
    engine, stop = Engine(), a_stop(mode)
    engine.slices = 3
    shut_down_here(engine, stop)
    assert [one for one in engine.calls if "slice" not in one] == list(WITHOUT_A_LOOP)
    assert engine.calls.count("slice 2") == 1
    report = stop.outcome.result()
    assert [one.phase for one in report.phases] == list(PHASES)
    assert {one.phase: one.outcome for one in report.phases} == {
        **dict.fromkeys(PHASES, Outcome.DONE),
        Phase.DRAIN: Outcome.SKIPPED,
    }


def test_each_step_is_over_before_the_next_begins(run):
    engine, stop = Engine(), a_stop()
    waiting = [name for name in ON_THE_LOOP if name in engine_waits()]

    async def main() -> None:
        events = {name: asyncio.Event() for name in waiting}
        engine.wait = {name: event.wait for name, event in events.items()}
        task = asyncio.ensure_future(shut_down(engine, stop))
        for name in waiting:
            for _ in range(10):
                await asyncio.sleep(0)
            assert engine.entered[-1] == name, "nothing begins while it is not over"
            assert not stop.outcome.done()
            events[name].set()
        await task

    run(main())
    assert engine.entered == list(ON_THE_LOOP)


def engine_waits() -> tuple[str, ...]:
    return ("drained", "handler_stopped", "core_stopped", "released")


@pytest.mark.parametrize("here", [False, True], ids=["loop", "here"])
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("count", [1, 99])
def test_whatever_fails_every_later_step_is_called_once(here, mode, count, run):
    names = WITHOUT_A_LOOP if here else ON_THE_LOOP
    wanted = [name for name in names if name != "drained" or mode is Mode.DRAIN]
    for first in range(len(wanted)):
        engine, stop = Engine(), a_stop(mode)
        engine.failing = set(wanted[first : first + count])
        if here:
            stop.cannot_drain()
            shut_down_here(engine, stop)
        else:
            run(shut_down(engine, stop))
        assert engine.entered == wanted
        report = stop.outcome.result()
        failed = [one for one in report.phases if one.outcome is Outcome.FAILED]
        assert len(failed) == len(engine.failing)
        assert not report.clean


def test_the_loop_turns_between_slices_of_ended_requests(run):
    engine, stop = Engine(), a_stop(Mode.ABORT)
    engine.slices = 4

    async def main() -> None:
        ticking = True

        async def tick() -> None:
            while ticking:
                engine.calls.append("tick")
                await asyncio.sleep(0)

        ticker = asyncio.ensure_future(tick())
        await shut_down(engine, stop)
        ticking = False
        await ticker

    run(main())
    first = engine.calls.index("slice 0")
    last = engine.calls.index("slice 3")
    between = engine.calls[first : last + 1]
    assert [one for one in between if one != "tick"] == [
        f"slice {number}" for number in range(4)
    ]
    assert between.count("tick") == 3
    assert engine.calls.index("handler_stopped") > last


def test_requests_are_ended_also_when_the_time_for_it_is_out(run):
    engine = Engine()
    engine.slices = 20
    stop = Stop(Mode.ABORT, Budget.arm(0.0, 1e-6), WHY)
    run(shut_down(engine, stop))
    slices = [call for call in engine.calls if call.startswith("slice")]
    assert slices == [f"slice {number}" for number in range(20)]
    end = next(one for one in stop.records if one.phase is Phase.END)
    assert end.outcome is Outcome.EXPIRED


def test_the_core_gets_its_share_less_what_killing_it_takes():
    now = 0.0
    stop = Stop(Mode.ABORT, Budget.arm(0.0, 10.0, lambda: now), WHY)
    allotted = stop.budget.allot(Phase.CORE)
    assert 0 < core_seconds(stop) < allotted
    engine = Engine()
    shut_down_here(engine, stop)
    assert engine.core_seconds == [core_seconds(stop)]


def test_a_run_whose_coroutine_is_thrown_away_leaves_a_report(run):
    engine, stop = Engine(), a_stop()

    async def main() -> None:
        engine.wait["handler_stopped"] = asyncio.Event().wait
        running = shut_down(engine, stop)
        running.send(None)
        running.close()

    run(main())
    assert stop.outcome.done()


def test_a_stop_that_is_finished_here_has_one_record_a_phase(run):
    # As shutdown() does on the loop's own thread while ashutdown() runs there.
    engine, stop = Engine(), a_stop()

    async def main() -> ShutdownReport:
        began = asyncio.Event()

        async def drain() -> None:
            began.set()
            await asyncio.Event().wait()

        engine.wait["drained"] = drain
        task = asyncio.ensure_future(shut_down(engine, stop))
        await began.wait()
        stop.cannot_drain()
        shut_down_here(engine, stop)
        report = stop.outcome.result()
        task.cancel()
        await asyncio.wait([task])
        return report

    report = run(main())
    assert [one.phase for one in report.phases] == list(PHASES)


# -- any order of events, in virtual time ------------------------------------------


class NothingLeftToWaitForError(Exception):
    """The loop would sleep for ever: someone waits for what never comes."""


class Instant(selectors.DefaultSelector):
    """Lets a loop's time pass at once; and a loop that hangs is an error."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise NothingLeftToWaitForError
            self.now += max(0.0, timeout)
        return ready


DRAIN, TEARDOWN = 3.0, 10.0

SPANS = st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0, 1e9])
MOMENTS = st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 3.05, 4.0, 9.0])
EVENTS = ("abort", "kill", "cancel the run", "join", "cancel a joiner", "here")


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "mode": draw(st.sampled_from(Mode)),
        "failing": draw(st.sets(st.sampled_from(ON_THE_LOOP), max_size=3)),
        "spans": {name: draw(SPANS) for name in engine_waits()},
        "slices": draw(st.integers(0, 3)),
        "events": draw(
            st.lists(st.tuples(MOMENTS, st.sampled_from(EVENTS)), max_size=6)
        ),
    }


@settings(max_examples=150, deadline=None)
@given(plans())
def test_whatever_comes_every_step_is_taken_and_everyone_gets_an_answer(plan):
    selector = Instant()
    events = [what for _, what in plan["events"]]
    drain = DRAIN if plan["mode"] is Mode.DRAIN else 0.0
    stop = Stop(plan["mode"], Budget.arm(drain, TEARDOWN, lambda: selector.now), WHY)
    engine = Engine()
    engine.failing, engine.slices = plan["failing"], plan["slices"]
    for name, span in plan["spans"].items():
        engine.wait[name] = lambda span=span: asyncio.sleep(span)
    joiners: list[asyncio.Task[ShutdownReport]] = []
    cancelled: set[asyncio.Task[ShutdownReport]] = set()
    modes = [stop.mode]
    complaints: list[Any] = []

    def happens(what: str, run: asyncio.Task[None]) -> None:
        if what == "cancel the run":
            run.cancel()
        elif what == "join":
            joiners.append(asyncio.ensure_future(stop.join()))
        elif what == "cancel a joiner":
            left = [one for one in joiners if not one.done()]
            if left and left[-1].cancel():
                cancelled.add(left[-1])
        elif what == "here":
            stop.cannot_drain()
            shut_down_here(engine, stop)
        else:
            stop.raise_to(Mode.parse(what), WHY)
        modes.append(stop.mode)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        run = asyncio.ensure_future(shut_down(engine, stop))
        joiners.append(asyncio.ensure_future(stop.join()))
        await asyncio.sleep(0)  # whoever makes a task answers for its first step
        for moment, what in plan["events"]:
            loop.call_at(moment, happens, what, run)
        await asyncio.wait([run])
        assert not run.cancelled()
        assert run.exception() is None
        await asyncio.sleep(20)  # until the last event is over
        await asyncio.wait(joiners)

    def make_loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(selector)
        loop.time = lambda: selector.now
        return loop

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())

    assert complaints == []
    report = stop.outcome.result(0)
    assert report.seconds <= drain + TEARDOWN + 1e-6
    assert modes == sorted(modes)
    for joiner in joiners:
        if joiner in cancelled:
            assert joiner.cancelled()
        else:
            assert joiner.result() is report

    entered = [PHASE_OF[name] for name in engine.entered if name in PHASE_OF]
    wanted = [phase for phase in PHASES if phase in {Phase.DRAIN, *entered}]
    if plan["mode"] is not Mode.DRAIN:
        wanted.remove(Phase.DRAIN)
    assert set(PHASES) - set(wanted) <= {Phase.DRAIN}
    if {"cancel the run", "here"} & set(events):
        # A step can be entered anew, but none is left out or comes too early.
        assert list(dict.fromkeys(entered)) == wanted
    else:
        assert entered == wanted
        assert [one.phase for one in report.phases] == list(PHASES)
    if "here" not in events:
        core = entered.index(Phase.CORE)
        assert Phase.HANDLER not in entered[core:]
    failed = {one.phase for one in report.phases if one.outcome is Outcome.FAILED}
    assert failed <= {PHASE_OF[name] for name in plan["failing"]}
