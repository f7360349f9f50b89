"""A drain that is prepared, joined, taken back, and overtaken by a stop."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from vllm_ashutdown.core.budget import Budget
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.stop import Stop
from vllm_ashutdown.core.tally import Tally
from vllm_ashutdown.core.trigger import Trigger
from vllm_ashutdown.http.gate import Gate
from vllm_ashutdown.http.preparation import Preparation

AGES = 60.0


class Server:
    """A gate with one request in flight, and the drain of both."""

    def __init__(self) -> None:
        self.gate = Gate(Tally(), 1)
        self.stop: Stop | None = None
        self.watched = 0
        self.request = self.gate.tally.busy()
        self.request.__enter__()
        self.preparation = Preparation(
            self.gate,
            stop=lambda: self.stop,
            watch=lambda: self.count(1),
            unwatch=lambda: self.count(-1),
        )

    def count(self, one: int) -> None:
        self.watched += one

    def request_ends(self) -> None:
        self.request.__exit__(None, None, None)

    def begin_stop(self, drain: float = AGES) -> None:
        self.preparation.overtake()
        budget = Budget.arm(drain, AGES)
        self.stop = Stop(Mode.DRAIN, budget, Trigger.call("a test"))

    async def posts(self, *seconds: float) -> list[asyncio.Task[Any]]:
        tasks = [
            asyncio.create_task(self.preparation.drain(one))
            for one in seconds or (AGES,)
        ]
        await turns()
        return tasks


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def server() -> Server:
    return Server()


async def test_nothing_is_prepared_before_anyone_asks(server):
    assert not server.gate.closed
    assert server.watched == 0
    assert server.preparation.reading().plain() == {
        "phase": "serving",
        "idle": False,
        "in_flight": 1,
        "busy_servers": 0,
        "remaining_seconds": None,
    }


async def test_it_closes_the_door_at_once_and_answers_with_the_last_request(server):
    (task,) = await server.posts(30)
    assert server.gate.closed
    assert server.watched == 1
    assert not task.done()
    reading = server.preparation.reading()
    assert (reading.phase, reading.in_flight, reading.idle) == ("prepare", 1, False)
    assert 25 < reading.remaining <= 30
    server.request_ends()
    await turns()
    assert task.result().idle
    assert server.gate.closed, "it stays prepared"


async def test_with_nothing_in_flight_it_answers_at_once(server):
    server.request_ends()
    assert (await server.preparation.drain(AGES)).idle


async def test_a_time_that_is_out_ends_the_wait_and_not_the_drain(server):
    reading = await server.preparation.drain(0)
    assert (reading.phase, reading.idle, reading.remaining) == ("prepare", False, 0)
    assert server.gate.closed
    (task,) = await server.posts(AGES)
    server.request_ends()
    await turns()
    assert task.result().idle


async def test_no_limit_is_none(server):
    (task,) = await server.posts(math.inf)
    assert server.preparation.reading().plain()["remaining_seconds"] is None
    server.request_ends()
    assert (await task).idle


async def test_ten_join_one_drain_each_with_its_own_time(server):
    tasks = await server.posts(*range(10))
    assert server.watched == 1, "it is prepared once"
    assert 8 < server.preparation.reading().remaining <= 9
    await tasks[0]
    assert [task.done() for task in tasks] == [True] + [False] * 9
    server.request_ends()
    await turns()
    assert all(task.result().idle for task in tasks[1:])


async def test_taken_back_it_serves_and_who_waits_is_told(server):
    first = await server.posts(AGES, AGES)
    server.gate.refused = 3
    assert await server.preparation.take_back()
    assert not server.gate.closed
    assert (server.watched, server.gate.refused) == (0, 0)
    second = await server.posts()  # before those who waited had their turn
    assert [task.result().phase for task in first] == ["serving"] * 2
    assert not second[0].done()
    server.request_ends()
    assert (await second[0]).phase == "prepare"


async def test_taking_back_what_is_not_there_changes_nothing(server):
    assert await server.preparation.take_back()
    assert server.watched == 0
    (task,) = await server.posts()
    assert not task.done()
    task.cancel()


async def test_a_stop_is_not_taken_back_and_its_end_is_heard(server):
    (task,) = await server.posts()
    server.begin_stop()
    assert not await server.preparation.take_back()
    assert server.gate.closed
    assert server.watched == 1, "the stop counts on"
    await turns()
    assert not task.done(), "its request runs on"
    reading = server.preparation.reading()
    assert reading.phase == "announce"
    assert AGES < reading.remaining <= 2 * AGES
    server.preparation.settle()
    assert (await task).phase == "announce"


@pytest.mark.parametrize("taken_back_before", [False, True])
async def test_who_asks_during_a_stop_joins_it(server, taken_back_before):
    if taken_back_before:
        await server.posts(0)
        await server.preparation.take_back()
        await turns()
    server.begin_stop()
    (task,) = await server.posts()
    assert not task.done()
    server.preparation.settle()
    await task
    assert (await server.preparation.drain(AGES)).phase == "announce"


async def test_a_stop_whose_order_has_not_begun_counts_too(server):
    server.preparation.overtake()
    assert not await server.preparation.take_back()
    assert server.preparation.reading().phase == "announce"


async def test_a_stop_that_is_over_is_complete(server):
    server.begin_stop()
    server.stop.finish()
    assert server.preparation.reading().phase == "complete"


async def test_a_cancelled_caller_leaves_the_drain_as_it_is(server):
    first, second = await server.posts(AGES, AGES)
    first.cancel()
    await turns()
    assert first.cancelled()
    assert server.gate.closed
    server.request_ends()
    assert (await second).idle
    await turns()
    assert len(asyncio.all_tasks()) == 1, "nobody waits on"
