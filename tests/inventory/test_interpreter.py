from __future__ import annotations

import asyncio
import functools
import os
import threading
import weakref
from collections.abc import Callable

import pytest

from tests.inventory.planted import child
from tests.inventory.sides import found, needs_linux, sees, spares
from vllm_ashutdown.inventory import take_baseline

pytestmark = needs_linux


@pytest.fixture
def start():
    """Starts threads that live as long as the test."""
    over, threads = threading.Event(), []

    def start(target: Callable = over.wait, **options: object) -> threading.Thread:
        kind = options.pop("kind", threading.Thread)
        thread = kind(target=target, **options)  # type: ignore[operator]
        thread.start()
        threads.append(thread)
        return thread

    start.wait = over.wait  # type: ignore[attr-defined]
    yield start
    over.set()
    for thread in threads:
        thread.join(10)


def by_vllm(module: str, wait: Callable) -> Callable:
    """A function that stands in ``module``."""

    def work() -> None:
        wait()

    work.__module__ = module
    return work


class Monitor(threading.Thread):
    """A thread that is a class of vLLM's."""


Monitor.__module__ = "vllm.v1.engine.monitor"


@sees("threads")
def test_threads_that_vllm_and_the_stop_have_left(start):
    before = take_baseline()  # other tests' homes live on
    threads = [
        start(name="vllm-offloading", daemon=True),
        start(by_vllm("vllm.v1.engine.core_client", start.wait), name="a"),
        start(functools.partial(by_vllm("vllm", start.wait)), name="b"),
        start(by_vllm("vllm_ashutdown.core.thread", start.wait), name="c"),
        start(name="d", kind=Monitor),
    ]
    ids = [thread.native_id for thread in threads]
    assert found("threads", baseline=before) == {
        f"vllm-offloading (daemon, id {ids[0]})",
        *(f"{name} (id {i})" for name, i in zip("abcd", ids[1:], strict=True)),
    }


@sees("threads")
def test_a_thread_that_is_owned_by_its_id(start):
    thread = start(name="ThreadPoolExecutor-0_0")
    items = found("threads", threads={thread.native_id})
    assert items == {f"ThreadPoolExecutor-0_0 (id {thread.native_id})"}


@spares("threads")
def test_threads_of_the_host(start):
    start(name="host")
    start(by_vllm("vllm_router.proxy", start.wait), name="another package")
    start(by_vllm("vllm.v1", start.wait), name="from before")
    before = take_baseline()
    spared = start(by_vllm("vllm_ashutdown.adapters", start.wait)).native_id
    assert found("threads", baseline=before, spared=frozenset({spared})) == set()


@spares("threads")
def test_the_thread_that_looks(start):
    seen: list[set[str]] = []
    start(lambda: seen.append(found("threads")), name="vllm-ashutdown-core").join(10)
    assert seen == [set()]


def coroutine_of(module: str) -> Callable:
    """A coroutine function that stands in ``module`` and waits for its argument."""
    names: dict = {"__name__": module}
    exec("async def output_handler(event):\n    await event.wait()", names)
    function: Callable = names["output_handler"]
    return function


@sees("tasks")
async def test_a_task_that_is_pending():
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    work = coroutine_of("vllm.v1.engine.async_llm")
    task = asyncio.create_task(work(event), name="Task-handler")
    assert found("tasks", loop=loop) == {"output_handler (Task-handler)"}
    elsewhere = await asyncio.to_thread(found, "tasks", loop=loop)
    assert elsewhere == {"output_handler (Task-handler)"}
    event.set()
    await task
    assert found("tasks", loop=loop) == set()


@spares("tasks")
async def test_tasks_of_the_host_and_of_the_stop():
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    modules = ("__main__", "vllm_ashutdown.core.order", "vllm.v12", "uvicorn.server")
    tasks = [asyncio.create_task(coroutine_of(module)(event)) for module in modules]
    await asyncio.sleep(0)
    assert found("tasks", loop=loop) == set()
    http = asyncio.create_task(coroutine_of("vllm.entrypoints.launcher")(event))
    tasks.append(http)
    assert found("tasks", loop=loop) == set(), "HTTP closes beside the engine"
    homes = ("vllm.v1", "vllm.entrypoints")
    assert len(found("tasks", loop=loop, homes=homes)) == 1
    event.set()
    await asyncio.gather(*tasks)


@spares("tasks")
async def test_tasks_of_another_loop():
    event = asyncio.Event()
    work = coroutine_of("vllm.v1.engine.async_llm")
    task = asyncio.create_task(work(event))
    other = asyncio.new_event_loop()
    other.close()
    assert found("tasks", loop=other) == set()
    assert found("tasks") == set()
    event.set()
    await task


class Engine:
    pass


@sees("references")
def test_an_engine_that_somebody_holds():
    engine = Engine()
    references = (("engine", weakref.ref(engine)),)
    assert found("references", references=references) == {"engine"}
    del engine
    assert found("references", references=references) == set()


@spares("references")
def test_an_engine_of_someone_else():
    mine, other = Engine(), Engine()
    references = (("engine", weakref.ref(mine)),)
    del mine
    assert found("references", references=references) == set()
    assert other


@sees("descriptors")
def test_a_descriptor_that_nobody_closed(folder):
    before = found("descriptors")
    path = folder / "file"
    with path.open("w") as file:
        assert found("descriptors") - before == {f"{file.fileno()} -> {path}"}
    assert found("descriptors") == before


@spares("descriptors")
def test_descriptors_of_others_and_the_one_that_looks():
    with child("file = open('/dev/zero')") as (process, _):
        items = found("descriptors", processes=(process,))
        assert not any(item.endswith("/dev/zero") for item in items)
        assert not any("/fd" in item for item in items)
        assert len(items) == len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208
