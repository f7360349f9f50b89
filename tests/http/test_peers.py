"""Three API servers of one launcher, whose drain is one: asked at any, told to all."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_ashutdown.core.reading import Reading
from vllm_ashutdown.core.tally import Tally
from vllm_ashutdown.http.gate import Gate
from vllm_ashutdown.http.peers import Peers
from vllm_ashutdown.http.preparation import Preparation
from vllm_ashutdown.tree.draining import WORD, DrainRelay

AGES = 60.0


class Server:
    """One of them, with a request in flight."""

    def __init__(self, launcher: Launcher, pid: int) -> None:
        self.gate = Gate(Tally(), 1)
        self.request = self.gate.tally.busy()
        self.request.__enter__()
        self.stop: Any = None
        self.preparation = Preparation(
            self.gate,
            stop=lambda: self.stop,
            peers=Peers(lambda words: launcher.say(pid, words)),
        )

    def post(self, seconds: float = AGES) -> asyncio.Task[Reading]:
        return asyncio.create_task(self.preparation.drain(seconds))

    def request_ends(self) -> None:
        self.request.__exit__(None, None, None)


class Launcher:
    """Its relay, and connections on which a message takes a turn of the loop."""

    def __init__(self) -> None:
        self.listeners: dict[str, Any] = {}
        self.servers = {pid: Server(self, pid) for pid in (1, 2, 3)}
        DrainRelay(self, [SimpleNamespace(pid=pid) for pid in self.servers])  # type: ignore[arg-type]

    def say(self, pid: int, words: dict[str, Any]) -> None:
        hear = self.listeners[WORD]
        record = SimpleNamespace(pid=pid)
        asyncio.get_running_loop().call_soon(hear, record, words)

    def tell(self, pid: int, message: dict[str, Any]) -> bool:
        assert message["do"] == WORD
        hear = self.servers[pid].preparation.hear
        asyncio.get_running_loop().call_soon(hear, message)
        return True


@pytest.fixture
async def three() -> list[Server]:
    return list(Launcher().servers.values())


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_asked_at_one_all_close_and_the_last_one_idle_answers(three):
    asked = three[0].post()
    await turns()
    assert [one.gate.closed for one in three] == [True] * 3
    assert three[1].preparation.reading().busy_servers == 3
    for ended, one in enumerate(three):
        assert not asked.done(), f"{ended} of 3 are idle"
        one.request_ends()
        await turns()
    assert asked.result().idle
    assert all(one.preparation.reading().idle for one in three)
    assert (await three[2].post()).idle, "it is known by all"


async def test_one_that_is_idle_itself_is_not_all(three):
    three[0].request_ends()
    reading = await three[0].preparation.drain(0.01)
    assert (reading.in_flight, reading.busy_servers, reading.idle) == (0, 2, False)


async def test_asked_at_all_at_once_it_is_one_drain(three):
    asked = [one.post() for one in three]
    await turns()
    for one in three:
        one.request_ends()
    assert [reading.idle for reading in await asyncio.gather(*asked)] == [True] * 3


async def test_taken_back_at_another_all_serve_and_who_waits_is_told(three):
    asked = three[0].post()
    await turns()
    assert await three[1].preparation.take_back()
    assert (await asked).phase == "serving"
    await turns()
    assert [one.gate.closed for one in three] == [False] * 3


async def test_what_was_idle_in_a_drain_that_was_taken_back_does_not_count(three):
    for one in three:
        one.request_ends()
    assert (await three[0].post()).idle
    assert await three[0].preparation.take_back()
    three[2].request = three[2].gate.tally.busy()
    three[2].request.__enter__()
    asked = three[1].post()
    await turns()
    assert not asked.done()
    three[2].request_ends()
    assert (await asked).idle


@pytest.mark.parametrize("first", ["prepare", "take back"])
async def test_asked_for_both_at_once_all_end_the_same(three, first):
    await asyncio.gather(three[2].post(0))
    await turns()
    both = [three[0].preparation.drain(0), three[1].preparation.take_back()]
    if first == "take back":
        both.reverse()
    await asyncio.gather(*both)
    await turns()
    assert len({one.gate.closed for one in three}) == 1
    assert await three[0].preparation.take_back()


async def test_a_stop_answers_who_waits_and_is_not_taken_back(three):
    asked = three[0].post()
    await turns()
    for one in three:
        one.preparation.overtake()
    assert not await three[1].preparation.take_back()
    assert not asked.done()
    three[0].preparation.settle()
    assert (await asked).phase == "announce"


async def test_who_asks_first_in_a_stop_waits_for_its_own_requests(three):
    three[0].preparation.overtake()
    asked = three[0].post()
    await turns()
    assert not asked.done()
    three[0].request_ends()
    await turns()
    assert asked.done()


async def test_a_word_of_an_earlier_drain_comes_too_late(three):
    own, peers = three[0].preparation, Peers(lambda _: None)
    for number, prepare in ((1, True), (2, False), (3, True)):
        peers.hear({"prepare": prepare, "round": number, "servers": [1]}, own)
    peers.hear({"idle": 1, "round": 1}, own)
    assert (peers.busy, peers.idle.is_set()) == (1, False)
    peers.hear({"idle": 1, "round": 3}, own)
    assert (peers.busy, peers.idle.is_set()) == (0, True)
    three[0].request_ends()
    await turns()
