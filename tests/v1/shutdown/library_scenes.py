"""Programs that use a real engine and stop it, one a scene.

Run by test_library.py, each in a process of its own: what a program leaves on
stderr and what it exits with can only be seen from outside.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sys
import threading
import time
from typing import Any

import psutil
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from tests import pace
from tests.loops import RUNNERS
from tests.scenes import INTERRUPTS, Scene, main
from tests.tiny_model import counts, tiny_model
from vllm import SamplingParams
from vllm_ashutdown import EngineClosedError, EngineShutdownError

CALLERS = 4

kept: list[AsyncLLM] = []
"""Engines at module scope."""


def make_engine() -> AsyncLLM:
    """The tiny model, as a program would make it."""
    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(tiny_model()),
            enforce_eager=True,
            worker_cls=pace.WORKER,
            gpu_memory_utilization=0.5,  # by default a memory node must be nearly empty
        )
    )


class Callers:
    """Some generate() calls in flight, and how each ended."""

    def __init__(self, engine: AsyncLLM) -> None:
        self.engine = engine
        self.ends: list[tuple[float, Exception | None]] = []
        self.tokens: list[int] = [0] * CALLERS
        self.flowing = asyncio.Event()
        self.tasks = [asyncio.create_task(self._run(at)) for at in range(CALLERS)]

    async def _run(self, at: int) -> None:
        params = SamplingParams(
            max_tokens=pace.tokens_for(32),
            temperature=0,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        error: Exception | None = None
        prompt = f"Count on from {at}00"
        try:
            async for output in self.engine.generate(prompt, params, f"r{at}"):
                self.tokens[at] += len(output.outputs[0].token_ids)
                if min(self.tokens) > 5:
                    self.flowing.set()
        except Exception as end:
            error = end
        self.ends.append((time.monotonic(), error))

    async def all_typed(self, since: float) -> dict[str, Any]:
        """Awaits them and says how late the last one ended, in ms."""
        await asyncio.wait_for(asyncio.gather(*self.tasks), 5)
        for _, error in self.ends:
            assert isinstance(error, EngineShutdownError), error
            assert len(error.output.outputs[0].token_ids) > 5
            assert error.output.outputs[0].text
        return {"callers_ms": 1e3 * (max(at for at, _ in self.ends) - since)}


class Hold:
    """How long the loop was held at most, in ms, from start to stop."""

    def __init__(self) -> None:
        # A collection of torch's whole heap is no step of a shutdown.
        gc.collect()
        gc.disable()
        self.longest = 0.0
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            self.longest = max(self.longest, 1e3 * (now - before))
            before = now

    async def stop(self) -> float:
        self._task.cancel()
        await asyncio.wait([self._task])
        gc.enable()
        return self.longest


async def ashutdown() -> dict[str, Any]:
    """Three calls at once join one run, with requests in flight."""
    engine = make_engine()
    callers = Callers(engine)
    await callers.flowing.wait()
    hold = Hold()
    await asyncio.sleep(0)
    since = time.monotonic()
    reports = await asyncio.gather(*(engine.ashutdown() for _ in range(3)))
    seconds = time.monotonic() - since
    held = await hold.stop()
    assert reports[0] is reports[1] is reports[2]
    assert reports[0].clean, reports[0]
    assert reports[0].requests.aborted == CALLERS
    found = await callers.all_typed(since)
    return found | {"held_ms": held, "seconds": seconds}


async def cancelled() -> dict[str, Any]:
    """A caller that is cancelled leaves a finished teardown behind."""
    engine = make_engine()
    callers = Callers(engine)
    await callers.flowing.wait()
    caller = asyncio.create_task(engine.ashutdown(timeout=60))
    await asyncio.sleep(0.2)
    since = time.monotonic()
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    assert all(
        one.exitcode == 0
        for one in engine.engine_core.resources.engine_manager.processes
    )
    return await callers.all_typed(since)


async def on_the_loop() -> dict[str, Any]:
    """The synchronous shutdown on the loop's own thread, twice."""
    engine = make_engine()
    callers = Callers(engine)
    await callers.flowing.wait()
    since = time.monotonic()
    engine.shutdown()
    engine.shutdown()
    seconds = time.monotonic() - since
    found = await callers.all_typed(time.monotonic())
    return found | {"seconds": seconds}


async def other_thread() -> dict[str, Any]:
    """The synchronous shutdown from another thread while the loop runs."""
    engine = make_engine()
    callers = Callers(engine)
    await callers.flowing.wait()
    hold = Hold()
    await asyncio.sleep(0)
    since = time.monotonic()
    await asyncio.to_thread(engine.shutdown)
    held = await hold.stop()
    return await callers.all_typed(since) | {"held_ms": held}


def loop_closed() -> dict[str, Any]:
    """The synchronous shutdown once asyncio.run is over."""

    async def use() -> AsyncLLM:
        engine = make_engine()
        params = SamplingParams(max_tokens=5, temperature=0)
        async for _ in engine.generate("Count on from 417", params, "r"):
            pass
        return engine

    engine = asyncio.run(use())
    engine.shutdown()
    engine.shutdown()
    return {}


async def threads_end() -> dict[str, Any]:
    """Nothing keeps a program that is done with its engine."""
    before = threading.active_count()
    engine = make_engine()
    callers = Callers(engine)
    await callers.flowing.wait()
    await engine.ashutdown()
    await asyncio.gather(*callers.tasks)
    left = [one.name for one in threading.enumerate() if not one.daemon]
    assert left == ["MainThread"], left
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return {"threads": threading.active_count() - before}


def assert_no_children() -> None:
    """But for the standard library's own tracker."""
    left = [" ".join(one.cmdline()) for one in psutil.Process().children()]
    assert all("resource_tracker" in one for one in left), left


async def _ask(engine: AsyncLLM, name: str, tokens: int) -> None:
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    async for output in engine.generate("Count on from 417", params, name):
        text = output.outputs[0].text
    assert counts(text), text


def interrupted() -> dict[str, Any]:
    """Ctrl-C in asyncio.run, again and again, and a loop of its own each time."""
    engine = make_engine()
    lots, number = random.Random(7), int(os.environ.get(INTERRUPTS, "20"))
    asyncio.run(_ask(engine, "first", 24))
    for at in range(number):
        moment = lots.uniform(0.02, 0.4)
        timer = threading.Timer(moment, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            asyncio.run(_ask(engine, f"cut{at}", 8000))
        except KeyboardInterrupt:
            timer.join()
        else:
            raise AssertionError("no KeyboardInterrupt")
        with list(RUNNERS.values())[at % len(RUNNERS)]() as runner:
            runner.run(_ask(engine, f"whole{at}", 24))
    report = asyncio.run(engine.ashutdown())
    assert report.clean, report
    return {"interrupts": number}


async def in_a_block() -> dict[str, Any]:
    """``async with``; in debug mode, and left by an exception."""
    asyncio.get_running_loop().set_debug(True)
    try:
        async with make_engine() as engine:
            await _ask(engine, "r", 24)
            raise ZeroDivisionError  # noqa: TRY301 (through the block's end)
    except ZeroDivisionError:
        pass
    try:
        await _ask(engine, "late", 24)
    except EngineClosedError:
        return {}
    raise AssertionError("it is not closed")


def closed_from_another_loop() -> dict[str, Any]:
    """Made and used in a thread with a loop of its own, closed from the main one."""
    flowing, ended = threading.Event(), threading.Event()
    engines: list[AsyncLLM] = []
    found: dict[str, Any] = {}

    async def use() -> None:
        engines.append(make_engine())
        callers = Callers(engines[0])
        await callers.flowing.wait()
        flowing.set()
        await asyncio.wait(callers.tasks)
        found.update(await callers.all_typed(since[0]))
        await asyncio.to_thread(ended.wait)

    since = [0.0]
    thread = threading.Thread(target=asyncio.run, args=(use(),))
    thread.start()
    flowing.wait()
    since[0] = time.monotonic()
    report = asyncio.run(engines[0].ashutdown())
    assert report.clean, report
    assert report.requests.aborted == CALLERS
    ended.set()
    thread.join()
    return found


async def left_by_cancellation() -> dict[str, Any]:
    """``async with`` in a task that is cancelled in the middle of a stream."""
    flows = asyncio.Event()
    engines: list[AsyncLLM] = []

    async def use() -> None:
        async with make_engine() as engine:
            engines.append(engine)
            params = SamplingParams(max_tokens=8000, temperature=0, ignore_eos=True)
            async for _ in engine.generate("Count on from 417", params, "r"):
                flows.set()

    task = asyncio.create_task(use())
    await flows.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert_no_children()
    try:
        await _ask(engines[0], "late", 24)
    except EngineClosedError:
        return {}
    raise AssertionError("it is not closed")


async def dropped() -> dict[str, Any]:
    """The last reference goes, on the loop."""
    engine = make_engine()
    await _ask(engine, "r", 24)
    del engine
    gc.collect()
    assert_no_children()
    return {}


def forked() -> dict[str, Any]:
    """A child of the program goes through every exit hook; the engine is another's."""
    engine = make_engine()
    asyncio.run(_ask(engine, "first", 24))
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    asyncio.run(_ask(engine, "second", 24))
    report = asyncio.run(engine.ashutdown())
    assert report.clean, report
    return {}


async def an_exception_on_the_way_out() -> dict[str, Any]:
    """The program fails with a stream open; its own error is all that is told."""
    kept.append(make_engine())
    callers = Callers(kept[0])
    await callers.flowing.wait()
    sys.excepthook = lambda kind, error, trace: print("its own:", error)
    raise ZeroDivisionError


async def sys_exit() -> dict[str, Any]:
    """Left from within a coroutine, with a code of the program's own."""
    kept.append(make_engine())
    await _ask(kept[0], "r", 24)
    sys.exit(3)


def never_closed() -> dict[str, Any]:
    """An engine at module scope, left to the interpreter's exit."""

    async def use() -> None:
        kept.append(make_engine())
        params = SamplingParams(max_tokens=5, temperature=0)
        async for _ in kept[0].generate("Count on from 417", params, "r"):
            pass

    asyncio.run(use())
    return {}


SCENES: dict[str, Scene] = {
    scene.__name__: scene
    for scene in (
        ashutdown,
        cancelled,
        on_the_loop,
        other_thread,
        loop_closed,
        threads_end,
        interrupted,
        in_a_block,
        closed_from_another_loop,
        left_by_cancellation,
        dropped,
        forked,
        an_exception_on_the_way_out,
        sys_exit,
        never_closed,
    )
}


if __name__ == "__main__":
    main(SCENES)
