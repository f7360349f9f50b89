"""Runs a shutdown through thousands of schedules and says what went wrong.

An event loop runs what is ready first come, first served, so a test sees one
order of many. Here the loop draws lots among the tasks that are ready, and a seed
draws the actors and the moments at which they act. The same actors can be pointed
at stock's order, which shows that the explorer finds what it is for.

Real are: ``AsyncLLM``, its output handler, ``AsyncMPClient`` with its output
queue task, the output processor, ZMQ. The core is :mod:`tests.stub_core`.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import RequestOutputCollector

from tests.stub_core import ENDLESS, StubCore, generate, make_engine
from vllm_ashutdown import EngineShutdownError
from vllm_ashutdown.adapters.engine_state import state_of
from vllm_ashutdown.seams import installer

PATIENCE = 5.0
"""Seconds after which a caller that still waits is taken to wait for ever."""


class LotteryLoop(asyncio.SelectorEventLoop):
    """Draws lots among the tasks that are ready, and writes down who won."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._lots = random.Random(seed)
        self._trace = hashlib.blake2b(digest_size=16)

    def schedule(self) -> str:
        """A name for the order in which tasks have run so far."""
        return self._trace.hexdigest()

    def _run_once(self) -> None:
        ready = list(self._ready)  # type: ignore[attr-defined]
        # Only steps of tasks: the order among a future's own callbacks is
        # asyncio's business and promised to them.
        places = [at for at, handle in enumerate(ready) if _task_of(handle)]
        drawn = [ready[at] for at in places]
        self._lots.shuffle(drawn)
        for at, handle in zip(places, drawn, strict=True):
            ready[at] = handle
            self._trace.update(_task_of(handle).encode())
        self._ready.clear()  # type: ignore[attr-defined]
        self._ready.extend(ready)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def _task_of(handle: asyncio.Handle) -> str:
    callback = handle._callback  # type: ignore[attr-defined]
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return task.get_name() + ";"
    return "step;" if type(callback).__name__ == "TaskStepMethWrapper" else ""


@dataclass
class Run:
    """What one schedule showed."""

    schedule: str = ""
    core_died: bool = False
    false_errors: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """All of it, a line each."""
        return [
            *(f"false error: {one}" for one in self.false_errors),
            *(f"doubled terminal event: {one}" for one in self.doubled),
            *(f"wrong end: {one}" for one in self.wrong),
            *(f"still waiting: {one}" for one in self.waiting),
        ]


Stop = Callable[[AsyncLLM], Awaitable[Any]]


async def ours(engine: AsyncLLM) -> Any:
    """The ordered shutdown."""
    return await engine.ashutdown()


async def stocks(engine: AsyncLLM) -> None:
    """What stock's launcher does: its ``shutdown`` in an executor."""
    shutdown = installer.original_or("AsyncLLM.shutdown", None)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, functools.partial(shutdown, engine, timeout=0))


def explore(seed: int, stop: Stop = ours) -> Run:
    """One schedule, drawn from ``seed``."""
    run = Run()
    core = StubCore()
    loop = LotteryLoop(seed)
    with (
        _errors() as errors,
        _terminal_events(run),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        runner.run(_scene(random.Random(seed), core, run, stop))
        run.schedule = loop.schedule()
    core.close()
    if not run.core_died:
        run.false_errors = errors
    return run


def _name_of(end: BaseException) -> str:
    """An engine that has stopped says so in a word of its own, and is as right."""
    if isinstance(end, EngineShutdownError):
        return EngineShutdownError.__name__
    return type(end).__name__


async def _scene(draw: random.Random, core: StubCore, run: Run, stop: Stop) -> None:
    engine = make_engine(core, shutdown_timeout=draw.choice([0, 0, 30]))
    is_ours = stop is ours
    callers: dict[str, asyncio.Task[str]] = {}

    async def pause() -> None:
        for _ in range(draw.randrange(12)):
            await asyncio.sleep(0)

    async def caller(name: str, tokens: int) -> str:
        await pause()
        outputs = 0
        try:
            async for output in generate(engine, name, tokens):
                outputs += 1
                if output.finished:
                    reason = output.outputs[0].finish_reason
                    return f"finished by {reason}"
        except (EngineShutdownError, EngineDeadError, asyncio.CancelledError) as end:
            return _name_of(end)
        except Exception as end:
            return f"{type(end).__name__} from {end.__cause__!r}"
        return "ended without a last output"

    async def utility() -> str:
        await pause()
        try:
            await engine.engine_core.get_supported_tasks_async()
        except (EngineShutdownError, EngineDeadError) as end:
            return _name_of(end)
        return "answered"

    async def death() -> None:
        await pause()
        run.core_died = True
        core.die()

    async def stopper(name: str) -> None:
        await pause()
        await stop(engine)

    async def hurry() -> None:
        await pause()
        await pause()
        await engine.ashutdown(timeout=0)

    for number in range(draw.randint(1, 4)):
        tokens = draw.choice([1, 3, ENDLESS, ENDLESS])
        callers[f"r{number}"] = asyncio.create_task(
            caller(f"r{number}", tokens), name=f"r{number}"
        )
    if draw.random() < 0.5:
        callers["utility"] = asyncio.create_task(utility(), name="utility")
    if draw.random() < 0.7:  # let some of them get through to the core
        await asyncio.sleep(draw.choice([0, 0.002, 0.004]))
    actors = [asyncio.create_task(stopper("stop"), name="stop")]
    if draw.random() < 0.25:
        actors.append(asyncio.create_task(death(), name="death"))
    if is_ours:
        # A drain of endless requests needs someone to hurry it.
        if draw.random() < 0.5 or engine.vllm_config.shutdown_timeout:
            actors.append(asyncio.create_task(hurry(), name="hurry"))
        if draw.random() < 0.3:
            actors.append(asyncio.create_task(stopper("again"), name="again"))
        if draw.random() < 0.2:
            victim = asyncio.create_task(stopper("victim"), name="victim")
            actors.append(victim)
            await pause()
            victim.cancel()
    if draw.random() < 0.2:
        late = asyncio.create_task(caller("late", 3), name="late")
        callers["late"] = late

    everyone = [*actors, *callers.values()]
    _, pending = await asyncio.wait(everyone, timeout=PATIENCE if is_ours else 0.5)
    for task in pending:
        run.waiting.append(f"{task.get_name()} ({_progress(engine)})")
        task.cancel()
    await asyncio.gather(*everyone, return_exceptions=True)
    for name, task in callers.items():
        if task not in pending:
            _judge(name, task.result(), run)
    engine.shutdown()


def _progress(engine: AsyncLLM) -> str:
    stop = state_of(engine).stop
    if stop is None:
        return "no stop"
    return " ".join(f"{one.phase}:{one.outcome}" for one in stop.records)


def _judge(name: str, end: str, run: Run) -> None:
    good = {"finished by length", "EngineShutdownError", "answered"}
    if run.core_died:
        good.add("EngineDeadError")
    if end not in good:
        run.wrong.append(f"{name}: {end}")


@contextmanager
def _errors() -> Iterator[list[str]]:
    """Collects what is logged as an error, by vLLM, by us and by asyncio."""
    lines: list[str] = []

    class Catch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(logging.Formatter().format(record))

    catch = Catch(logging.ERROR)
    loggers = [logging.getLogger(name) for name in ("vllm", "asyncio")]
    before = [(one.level, one.propagate, list(one.handlers)) for one in loggers]
    for one in loggers:
        one.handlers, one.propagate = [catch], False
        one.setLevel(logging.ERROR)
    try:
        yield lines
    finally:
        for one, (level, propagate, handlers) in zip(loggers, before, strict=True):
            one.handlers, one.propagate = handlers, propagate
            one.setLevel(level)


@contextmanager
def _terminal_events(run: Run) -> Iterator[None]:
    """Notes a queue that is given more than one error."""
    put = RequestOutputCollector.put
    given: dict[int, RequestOutputCollector] = {}

    def watched(self: RequestOutputCollector, output: Any) -> None:
        if isinstance(output, Exception):
            if id(self) in given:
                run.doubled.append(self.request_id)
            given[id(self)] = self
        put(self, output)

    RequestOutputCollector.put = watched
    try:
        yield
    finally:
        RequestOutputCollector.put = put
