from __future__ import annotations

import asyncio
import threading
import time

import pytest

from vllm_ashutdown.core.thread import OnceInThread


class Call:
    """A blocking call that ends when it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.calls: list[tuple[str, float]] = []
        self.error: BaseException | None = None

    def __call__(self, seconds: float) -> str:
        self.calls.append((threading.current_thread().name, seconds))
        self.begun.set()
        assert self.go.wait(20)
        if self.error is not None:
            raise self.error
        return "over"


@pytest.fixture
def call():
    made = Call()
    yield made
    made.go.set()  # no thread may outlive its test


@pytest.fixture
def once(call):
    return OnceInThread("the-thread", call)


def in_thread(function):
    """Runs it on a thread; gives what joins that and returns what came of it."""
    came: list[object] = []

    def run() -> None:
        try:
            came.append(function())
        except BaseException as error:
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def join() -> object:
        thread.join(20)
        return came[0]

    return join


async def begun(call: Call) -> None:
    await asyncio.get_running_loop().run_in_executor(None, call.begun.wait, 20)


async def test_many_awaiters_share_one_call(once, call):
    waiters = [asyncio.ensure_future(once.result(n + 1.0)) for n in range(5)]
    await begun(call)
    assert not any(waiter.done() for waiter in waiters)
    call.go.set()
    assert await asyncio.gather(*waiters) == ["over"] * 5
    assert call.calls == [("the-thread", 1.0)]
    assert await once.result(9.0) == "over"
    assert len(call.calls) == 1


async def test_the_loop_turns_meanwhile(once, call):
    waiter = asyncio.ensure_future(once.result(1.0))
    await begun(call)
    turns = 0
    for _ in range(10):
        await asyncio.sleep(0)
        turns += 1
    assert turns == 10
    assert not waiter.done()
    call.go.set()
    await waiter


async def test_a_cancelled_awaiter_takes_no_one_along_and_can_come_again(once, call):
    first = asyncio.ensure_future(once.result(1.0))
    second = asyncio.ensure_future(once.result(1.0))
    await begun(call)
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    assert not second.done()
    again = asyncio.ensure_future(once.result(1.0))
    call.go.set()
    assert await second == await again == "over"
    assert len(call.calls) == 1


async def test_every_awaiter_gets_the_error(once, call):
    call.error = LookupError("no core")
    call.go.set()
    for _ in range(2):
        with pytest.raises(LookupError, match="no core"):
            await once.result(1.0)
    with pytest.raises(LookupError, match="no core"):
        once.result_here(1.0)
    assert len(call.calls) == 1


def test_here_means_on_this_thread(once, call):
    call.go.set()
    assert once.result_here(3.0) == "over"
    assert call.calls == [(threading.current_thread().name, 3.0)]


def test_an_error_here_is_raised_here(once, call):
    call.error = LookupError("no core")
    call.go.set()
    with pytest.raises(LookupError, match="no core"):
        once.result_here(3.0)


async def test_here_joins_a_call_that_runs_elsewhere(once, call):
    waiter = asyncio.ensure_future(once.result(1.0))
    await begun(call)
    join = in_thread(lambda: once.result_here(20.0))
    call.go.set()
    assert join() == await waiter == "over"
    assert len(call.calls) == 1


async def test_an_awaiter_joins_a_call_that_runs_here(once, call):
    join = in_thread(lambda: once.result_here(20.0))
    await begun(call)
    waiter = asyncio.ensure_future(once.result(1.0))
    await asyncio.sleep(0)
    assert not waiter.done()
    call.go.set()
    assert await waiter == join() == "over"
    assert len(call.calls) == 1


async def test_here_waits_no_longer_than_it_may(once, call):
    waiter = asyncio.ensure_future(once.result(1.0))
    await begun(call)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        once.result_here(0.01)
    assert time.monotonic() - began < 10
    call.go.set()
    assert await waiter == "over"
    assert once.result_here(0.0) == "over", "a result that is there takes no time"


async def test_a_thread_that_hangs_holds_up_no_one(once, call):
    waiter = asyncio.ensure_future(once.result(1.0))
    await begun(call)
    (thread,) = (one for one in threading.enumerate() if one.name == "the-thread")
    assert thread.daemon
    call.go.set()
    await waiter
    thread.join(10)
    assert not thread.is_alive()


async def test_where_no_thread_can_be_started_the_call_is_made_on_the_loop(
    once, call, monkeypatch
):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    call.go.set()
    assert await once.result(1.0) == "over"
    assert once.result_here(0.01) == "over"
