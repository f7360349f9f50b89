"""The race between a stop and everything that runs beside it, both sides of it.

A stop that was asked for logs no error; a core that dies unasked is loud and
reaches every waiting request. On a stub core with vLLM's own protocol.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import pickle
import threading
import time
import weakref
from typing import Any

import pytest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from tests.explorer import explore, stocks
from tests.stub_core import (
    ENDLESS,
    StubCore,
    generate,
    make_engine,
    sampling,
    stub_engine,
)
from vllm_ashutdown import EngineShutdownError, InvalidSettingError
from vllm_ashutdown.adapters import core_client, output_processor
from vllm_ashutdown.adapters.engine_state import state_of
from vllm_ashutdown.core.budget import Budget
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Outcome, Phase
from vllm_ashutdown.core.report import ShutdownReport

SCHEDULES = 1500


class Errors(logging.Handler):
    """What vLLM, this package and asyncio log as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))


@pytest.fixture
def errors() -> Any:
    handler = Errors()
    loggers = [logging.getLogger(name) for name in ("vllm", "asyncio")]
    for one in loggers:
        one.addHandler(handler)
    yield handler.lines
    for one in loggers:
        one.removeHandler(handler)


async def consume(engine: AsyncLLM, name: str, tokens: int, **options: Any) -> Any:
    """Runs one request; gives its last output, or the error that ended it."""
    try:
        outputs = [one async for one in generate(engine, name, tokens, **options)]
    except Exception as error:
        return error
    return outputs[-1]


async def in_flight(engine: AsyncLLM, count: int) -> list[asyncio.Task[Any]]:
    """``count`` requests, each of which has had a token and waits for more."""
    first = asyncio.Queue[None]()

    async def run(name: str) -> Any:
        try:
            async for _ in generate(engine, name, ENDLESS):
                first.put_nowait(None)
        except Exception as error:
            return error, time.monotonic()
        return None

    tasks = [asyncio.create_task(run(f"r{number}")) for number in range(count)]
    for _ in tasks:
        await first.get()
    return tasks


async def begun(engine: AsyncLLM) -> asyncio.Task[ShutdownReport]:
    """A stop that has announced itself."""
    announced = asyncio.Event()
    state_of(engine).announce.append(announced.set)
    stopping = asyncio.create_task(engine.ashutdown())
    await announced.wait()
    return stopping


# -- the explorer -----------------------------------------------------------------


@pytest.mark.timeout(180)
def test_no_schedule_has_a_fault():
    began, seen, faults, died = time.monotonic(), set(), [], 0
    for seed in range(SCHEDULES):
        run = explore(seed)
        seen.add(run.schedule)
        died += run.core_died
        faults += [(seed, fault) for fault in run.faults]
    assert not faults
    assert len(seen) >= 1000
    assert died > SCHEDULES / 10  # the other side was there too
    assert time.monotonic() - began < 120


def test_the_same_explorer_finds_stocks_race():
    wanted = {"output_handler failed", "still waiting", "EngineDeadError"}
    for seed in range(200):
        for fault in explore(seed, stocks).faults:
            wanted -= {one for one in wanted if one in fault}
        if not wanted:
            return
    pytest.fail(f"200 schedules of stock's order without {wanted}")


# -- asked for: silent, typed, in order ---------------------------------------------


async def test_every_caller_gets_its_typed_error_with_what_was_produced(errors):
    with stub_engine() as (engine, core):
        tasks = await in_flight(engine, 4)
        began = time.monotonic()
        report = await engine.ashutdown()
        for task in tasks:
            error, at = await task
            assert isinstance(error, EngineShutdownError)
            assert error.output.outputs[0].token_ids == [7]
            assert error.output.finished is False
            assert at - began < 0.1
        assert len(core.aborted) == 4  # nothing computes for callers who are gone
    assert report.requests.aborted == 4
    assert report.clean
    assert not errors


async def test_one_of_n_is_ended_once_with_all_of_its_siblings(errors):
    with stub_engine() as (engine, core):
        task = asyncio.create_task(
            consume(engine, "n", ENDLESS, n=3, output_kind=RequestOutputKind.CUMULATIVE)
        )
        await asyncio.to_thread(core.wait_for_added, 3)
        await engine.ashutdown()
        error = await task
    assert isinstance(error, EngineShutdownError)
    assert [one.index for one in error.output.outputs] == [0, 1, 2]
    assert not errors


async def test_a_drain_lets_requests_finish_and_takes_no_new_ones(errors):
    with stub_engine(shutdown_timeout=30) as (engine, core):
        tasks = await in_flight(engine, 3)
        stopping = await begun(engine)
        refused = await consume(engine, "late", 3)
        assert isinstance(refused, EngineShutdownError)
        assert refused.output is None
        assert not stopping.done()
        core.finish_all()
        report = await stopping
        assert [await task for task in tasks] == [None] * 3
    assert (report.requests.completed, report.requests.refused) == (3, 1)
    assert report.requests.aborted == 0
    assert report.final_mode is Mode.DRAIN
    assert not errors


async def test_a_drains_deadline_ends_what_is_left(errors):
    with stub_engine() as (engine, _):
        tasks = await in_flight(engine, 2)
        report = await engine.ashutdown(timeout=0.2)
        results = [await task for task in tasks]
    assert all(isinstance(error, EngineShutdownError) for error, _ in results)
    drain = next(record for record in report.phases if record.phase is Phase.DRAIN)
    assert drain.outcome is Outcome.EXPIRED
    assert 0.2 <= drain.began + drain.spent < 0.4
    assert report.requests.aborted == 2
    assert not errors


async def test_no_time_to_end_requests_leaves_nobody_waiting(errors, monkeypatch):
    # A slice ends one request, and the time is out at the first of them.
    monkeypatch.setattr(output_processor, "SLICE_SECONDS", 0.0)
    allot = Budget.allot

    def none_for_that(budget: Budget, phase: Phase) -> float:
        return 0.0 if phase is Phase.END else allot(budget, phase)

    monkeypatch.setattr(Budget, "allot", none_for_that)
    with stub_engine() as (engine, _):
        tasks = await in_flight(engine, 50)
        report = await engine.ashutdown()
        results = await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert all(isinstance(error, EngineShutdownError) for error, _ in results)
    end = next(one for one in report.phases if one.phase is Phase.END)
    assert end.outcome is Outcome.EXPIRED
    assert report.requests.aborted == 50
    assert not errors


async def test_three_callers_join_one_run(errors):
    with stub_engine() as (engine, _):
        await in_flight(engine, 2)
        reports = await asyncio.gather(*(engine.ashutdown() for _ in range(3)))
        assert reports[0] is reports[1] is reports[2]
        assert await engine.ashutdown() is reports[0]
        assert engine.renderer.closed == 1
    assert not errors


async def test_a_cancelled_caller_leaves_a_finished_teardown_and_stays_cancelled(
    errors,
):
    with stub_engine(shutdown_timeout=30) as (engine, _):
        tasks = await in_flight(engine, 1)
        caller = await begun(engine)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        stop = state_of(engine).stop
        assert stop.outcome.done()
        assert caller.cancelled()
        assert stop.outcome.result().final_mode is Mode.ABORT
        assert isinstance((await tasks[0])[0], EngineShutdownError)
    assert not errors


async def test_a_second_stronger_call_raises_a_drain(errors):
    with stub_engine(shutdown_timeout=30) as (engine, _):
        await in_flight(engine, 2)
        draining = await begun(engine)
        report = await engine.ashutdown(timeout=0)
        assert await draining is report
    drain = next(one for one in report.phases if one.phase is Phase.DRAIN)
    assert drain.outcome is Outcome.RAISED
    assert drain.spent < 1
    assert not errors


async def test_the_loop_is_never_held_for_longer_than_20_ms():
    with stub_engine() as (engine, _):
        await in_flight(engine, 4)
        longest, running = 0.0, True

        async def watch() -> None:
            nonlocal longest
            before = time.perf_counter()
            while running:
                await asyncio.sleep(0)
                now = time.perf_counter()
                longest = max(longest, now - before)
                before = now

        gc.collect()
        gc.disable()  # a collection of torch's heap is no step of the shutdown
        try:
            watcher = asyncio.create_task(watch())
            await asyncio.sleep(0)
            await engine.ashutdown()
        finally:
            gc.enable()
        running = False
        await watcher
    assert longest < 0.020


async def test_a_call_into_the_core_that_waits_is_ended_too(errors):
    with stub_engine(answers_utilities=False) as (engine, _):
        call = asyncio.create_task(engine.engine_core.get_supported_tasks_async())
        await asyncio.sleep(0.01)
        await engine.ashutdown()
        with pytest.raises(EngineShutdownError):
            await call
        with pytest.raises(EngineShutdownError):
            await engine.engine_core.get_supported_tasks_async()
    assert not errors


async def test_a_request_whose_input_has_given_nothing_yet_is_ended_too(errors):
    never = asyncio.Event()

    async def inputs() -> Any:
        await never.wait()
        yield None

    async def run(engine: AsyncLLM) -> Any:
        params = sampling(5)
        try:
            async for _ in engine.generate(inputs(), params, "streamed"):
                pass
        except Exception as error:
            return error

    with stub_engine() as (engine, _):
        task = asyncio.create_task(run(engine))
        while not state_of(engine).inputs:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0)
        await engine.ashutdown()
        assert isinstance(await asyncio.wait_for(task, 5), EngineShutdownError)
    assert not errors


async def test_a_core_that_dies_before_the_first_request_is_through_ends_a_drain():
    with stub_engine(shutdown_timeout=30, answers_utilities=False) as (engine, core):
        task = asyncio.create_task(consume(engine, "r", ENDLESS))
        while not engine.engine_core.utility_results:  # noqa: ASYNC110
            await asyncio.sleep(0)
        stopping = await begun(engine)
        core.die()
        await asyncio.wait_for(stopping, 5)
        assert isinstance(await task, EngineShutdownError | EngineDeadError)


async def test_two_threads_that_raise_at_once_end_with_the_stronger():
    with stub_engine(shutdown_timeout=30) as (engine, _):
        await in_flight(engine, 1)
        stopping = await begun(engine)
        stop = state_of(engine).stop
        threads = [
            threading.Thread(target=stop.raise_to, args=(mode, stop.trigger))
            for mode in (Mode.KILL, Mode.ABORT)
        ]
        for thread in threads:
            thread.start()
        report = await stopping
        assert report.final_mode is Mode.KILL


async def test_the_typed_error_crosses_a_process_boundary():
    with stub_engine() as (engine, _):
        task = (await in_flight(engine, 1))[0]
        await engine.ashutdown()
        error, _ = await task
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, EngineShutdownError)
    assert str(again) == str(error)
    assert again.output.outputs[0].token_ids == [7]


# -- not asked for: loud, and nobody waits --------------------------------------------


async def test_a_core_that_dies_unasked_is_loud_and_reaches_every_request(errors):
    with stub_engine() as (engine, core):
        tasks = await in_flight(engine, 4)
        core.die()
        results = await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert all(isinstance(error, EngineDeadError) for error, _ in results)
        assert any("AsyncLLM output_handler failed" in line for line in errors)
        assert any("Traceback" in line for line in errors)
        report = await engine.ashutdown()
    assert report.requests.aborted == 0  # they died; the stop did not end them


async def test_a_core_that_dies_while_it_drains_ends_the_drain(errors):
    with stub_engine(shutdown_timeout=30) as (engine, core):
        tasks = await in_flight(engine, 2)
        stopping = await begun(engine)
        core.die()
        await asyncio.wait_for(stopping, 5)
        results = await asyncio.gather(*tasks)
        assert all(isinstance(error, EngineDeadError) for error, _ in results)
    assert any("output_handler failed" in line for line in errors)


# -- the synchronous wrapper ----------------------------------------------------------


async def test_shutdown_on_the_loops_own_thread(errors):
    with stub_engine() as (engine, _):
        tasks = await in_flight(engine, 2)
        engine.shutdown()
        engine.shutdown()
        results = await asyncio.wait_for(asyncio.gather(*tasks), 1)
        assert all(isinstance(error, EngineShutdownError) for error, _ in results)
        await asyncio.wait([engine.output_handler])
        assert engine.output_handler.cancelled()
    assert not errors


async def test_shutdown_on_the_loops_own_thread_while_a_drain_runs(errors):
    with stub_engine(shutdown_timeout=30) as (engine, _):
        tasks = await in_flight(engine, 2)
        draining = await begun(engine)
        engine.shutdown()
        report = await asyncio.wait_for(draining, 5)
        results = await asyncio.gather(*tasks)
        assert all(isinstance(error, EngineShutdownError) for error, _ in results)
    assert isinstance(report, ShutdownReport)
    assert not errors


async def test_a_take_over_leaves_no_task_behind(errors):
    with (
        stub_engine(shutdown_timeout=30) as (engine, _),
        state_of(engine).tally.busy(),  # an HTTP answer, say
    ):
        draining = await begun(engine)
        run = state_of(engine).task
        engine.shutdown()
        await asyncio.wait_for(draining, 5)
        await asyncio.wait_for(asyncio.wait([run]), 5)
    assert not errors


async def test_an_interrupt_in_a_synchronous_shutdown_goes_on_after_it(
    monkeypatch, errors
):
    with stub_engine() as (engine, _):
        await in_flight(engine, 1)
        stop, interrupts = core_client.stop, [KeyboardInterrupt()]

        def interrupted(*args: Any) -> Any:
            if interrupts:
                raise interrupts.pop()
            return stop(*args)

        monkeypatch.setattr(core_client, "stop", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.shutdown()
        report = state_of(engine).stop.outcome.result()
        assert report.final_mode is Mode.KILL
        assert [one.phase for one in report.phases][-2:] == [
            Phase.RELEASE,
            Phase.AUDIT,
        ]


async def test_shutdown_without_limit_from_another_thread(errors):
    with stub_engine() as (engine, core):
        tasks = await in_flight(engine, 2)
        stopping = asyncio.create_task(asyncio.to_thread(engine.shutdown, math.inf))
        while state_of(engine).stop is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        core.finish_all()
        await asyncio.wait_for(stopping, 5)
        assert await asyncio.gather(*tasks) == [None, None]
    assert not errors


async def test_shutdown_from_another_thread_while_the_loop_runs(errors):
    with stub_engine(shutdown_timeout=30) as (engine, core):
        tasks = await in_flight(engine, 2)
        thread = threading.Thread(target=engine.shutdown)
        thread.start()
        await asyncio.sleep(0.1)
        assert thread.is_alive()  # it drains, for it is the same ordered run
        core.finish_all()
        assert await asyncio.gather(*tasks) == [None, None]
        await asyncio.to_thread(thread.join, 5)
        assert not thread.is_alive()
    assert not errors


def test_shutdown_with_the_loop_closed(errors):
    core = StubCore()

    async def begin() -> AsyncLLM:
        engine = make_engine(core)
        await consume(engine, "r", 2)
        return engine

    engine = asyncio.run(begin())
    engine.shutdown()
    engine.shutdown()
    core.close()
    assert not errors


def test_shutdown_from_a_second_loop(errors):
    core = StubCore()

    async def begin() -> AsyncLLM:
        engine = make_engine(core)
        await consume(engine, "r", 2)
        return engine

    engine = asyncio.run(begin())
    report = asyncio.run(engine.ashutdown())
    assert report.phases[-1].phase is Phase.AUDIT
    core.close()
    assert not errors


def test_a_loop_that_is_torn_down_around_a_drain_leaves_it_finished(errors):
    core = StubCore()
    engines = []

    async def leave_it_running() -> None:
        engine = make_engine(core, shutdown_timeout=30)
        engines.append(engine)
        await in_flight(engine, 1)
        asyncio.get_running_loop().create_task(engine.ashutdown())
        await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(leave_it_running(), 5))
    stop = state_of(engines[0]).stop
    assert stop is not None
    assert stop.outcome.done()
    core.close()
    assert not errors


# -- references ---------------------------------------------------------------------


@pytest.mark.parametrize("how", ["never", "ashutdown", "shutdown"])
async def test_del_frees_the_engine(how, errors):
    core = StubCore()
    engine = make_engine(core)
    await consume(engine, "r", 2)
    if how == "ashutdown":
        await engine.ashutdown()
    elif how == "shutdown":
        engine.shutdown()
    for _ in range(3):
        await asyncio.sleep(0.01)  # the run's task goes with its last callback
    reference = weakref.ref(engine)
    gc.disable()  # by its reference count, as in stock: no cycle holds it
    try:
        del engine
        assert reference() is None
    finally:
        gc.enable()
    core.close()
    assert not errors


def test_a_half_built_engine_dies_silently(errors, capfd):
    engine = AsyncLLM.__new__(AsyncLLM)
    del engine
    engine = AsyncLLM.__new__(AsyncLLM)
    engine.shutdown()
    asyncio.run(engine.ashutdown())
    del engine
    with pytest.raises(TypeError):
        AsyncLLM()
    with pytest.raises(AttributeError):
        AsyncLLM(object(), object(), False)
    gc.collect()
    assert not errors
    assert "Exception ignored" not in capfd.readouterr().err


# -- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), "soon", True, [1]])
async def test_a_bad_timeout_is_named_and_nothing_is_half_stopped(timeout):
    with stub_engine() as (engine, _):
        with pytest.raises(InvalidSettingError, match=r"timeout=.*0 or more"):
            await engine.ashutdown(timeout)
        with pytest.raises(InvalidSettingError, match=r"timeout=.*0 or more"):
            engine.shutdown(timeout)
        assert state_of(engine).stop is None
        assert (await consume(engine, "r", 2)).finished


async def test_an_unknown_mode_is_named_and_nothing_is_half_stopped():
    with stub_engine() as (engine, _):
        with pytest.raises(InvalidSettingError, match="drain, abort, kill"):
            await engine.ashutdown(mode="gently")
        assert state_of(engine).stop is None
        assert (await consume(engine, "r", 2)).finished
