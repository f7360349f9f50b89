"""An engine goes on where the loop that it was used on has ended, and nowhere else."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
from vllm.v1.engine.exceptions import EngineDeadError

from tests.loops import RUNNERS
from tests.stub_core import ENDLESS, generate, stub_engine
from vllm_ashutdown import EngineClosedError


async def tokens(engine: Any, name: str, count: int) -> int:
    outputs = [one async for one in generate(engine, name, count)]
    return sum(len(one.outputs[0].token_ids) for one in outputs)


async def first_token(engine: Any, name: str) -> None:
    async for _ in generate(engine, name, ENDLESS):
        return


@pytest.mark.parametrize("runner", RUNNERS)
def test_one_engine_in_three_loops(runner, log):
    with stub_engine() as (engine, _):
        for number in range(3):
            with RUNNERS[runner]() as one:
                assert one.run(asyncio.wait_for(tokens(engine, f"r{number}", 5), 10))
        with RUNNERS[runner]() as one:
            report = one.run(engine.ashutdown())
        assert report.clean
        assert not [one for one in log.records if one.levelname == "ERROR"]


def test_a_call_into_the_core_on_a_second_loop_is_answered():
    async def ask(engine: Any) -> Any:
        return await asyncio.wait_for(
            engine.engine_core.get_supported_tasks_async(), 10
        )

    with stub_engine() as (engine, _):
        for _ in range(2):  # before there is a handler
            assert asyncio.run(ask(engine)) == ["generate"]
        assert asyncio.run(tokens(engine, "r0", 5)) == 5
        assert asyncio.run(ask(engine)) == ["generate"]
        assert asyncio.run(tokens(engine, "r1", 5)) == 5


def test_what_the_first_loop_has_left_is_ended_in_the_core():
    with stub_engine() as (engine, core):
        loop = asyncio.new_event_loop()
        left = generate(engine, "left", ENDLESS)
        loop.run_until_complete(anext(left))
        loop.close()  # without a word to anybody
        assert asyncio.run(tokens(engine, "next", 5)) == 5
        assert core.aborted == core.added[:1]
        assert not engine.output_processor.request_states


def test_a_loop_that_only_rests_may_turn_again():
    with stub_engine() as (engine, _):
        resting = asyncio.new_event_loop()
        resting.run_until_complete(tokens(engine, "r0", 5))
        assert asyncio.run(tokens(engine, "r1", 5)) == 5
        assert resting.run_until_complete(tokens(engine, "r2", 5)) == 5
        resting.run_until_complete(engine.ashutdown())
        resting.close()


def test_on_its_own_loop_the_handler_stays_the_same():
    async def run(engine: Any) -> None:
        await tokens(engine, "r0", 5)
        handler = engine.output_handler
        await tokens(engine, "r1", 5)
        assert engine.output_handler is handler

    with stub_engine() as (engine, _):
        asyncio.run(run(engine))


def test_ctrl_c_out_of_the_handler_itself():
    """A loop that the program runs by itself has no handler for SIGINT."""
    with stub_engine() as (engine, _):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(tokens(engine, "r0", 5))
        processor = engine.output_processor
        process, engine.output_processor.process_outputs = (
            processor.process_outputs,
            lambda *_, **__: signal.raise_signal(signal.SIGINT),
        )
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(tokens(engine, "r1", 5))
        processor.process_outputs = process
        assert loop.run_until_complete(asyncio.wait_for(tokens(engine, "r2", 5), 10))
        loop.run_until_complete(engine.ashutdown())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def test_a_dead_engine_stays_dead():
    async def dies(engine: Any, core: Any) -> None:
        await first_token(engine, "r0")
        core.die()
        await asyncio.wait([engine.output_handler])

    with stub_engine() as (engine, core):
        asyncio.run(dies(engine, core))
        with pytest.raises(EngineDeadError):
            asyncio.run(tokens(engine, "r1", 5))


# -- closing by name ------------------------------------------------------------------


async def closed_by_block(engine: Any) -> None:
    async with engine as same:
        assert same is engine
        assert await tokens(engine, "r0", 5) == 5


async def closed_by_error(engine: Any) -> None:
    async def block() -> None:
        async with engine:
            await tokens(engine, "r0", 5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await block()


async def closed_by_cancellation(engine: Any) -> None:
    waits = asyncio.Event()

    async def block() -> None:
        async with engine:
            await first_token(engine, "r0")
            waits.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await waits.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.parametrize(
    "close", [closed_by_block, closed_by_error, closed_by_cancellation]
)
def test_a_block_closes_its_engine_however_it_is_left(close):
    async def run(engine: Any) -> None:
        await close(engine)
        with pytest.raises(EngineClosedError, match="is closed"):
            await tokens(engine, "late", 5)
        with pytest.raises(EngineClosedError, match="is closed"):
            await engine.collective_rpc("any")
        assert (await engine.ashutdown()) is (await engine.ashutdown())

    with stub_engine() as (engine, _):
        asyncio.run(run(engine))


def test_a_block_that_ends_by_itself_lets_requests_run_on():
    async def run(engine: Any, core: Any) -> Any:
        async with engine:
            task = asyncio.create_task(tokens(engine, "r0", ENDLESS))
            await asyncio.to_thread(core.wait_for_added, 1)
            asyncio.get_running_loop().call_later(0.2, core.finish_all)
        return await task

    with stub_engine(shutdown_timeout=30) as (engine, core):
        assert asyncio.run(run(engine, core)) == 2
