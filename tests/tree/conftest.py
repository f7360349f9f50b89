"""Real processes, begun both ways, and none of them left behind."""

from __future__ import annotations

import functools
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.tree import targets
from tests.tree.ear import Ear


@pytest.fixture(autouse=True)
def _light_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares each process that is spawned the import of pytest."""
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
    for item in items:
        if item.path.parent.name == "tree":
            item.add_marker(mark)  # from 3.12 on; vLLM forks in such processes too


@pytest.fixture(params=["fork", "spawn"])
def method(request: pytest.FixtureRequest) -> str:
    way: str = request.param
    return way


@pytest.fixture
def ear() -> Iterator[Ear]:
    one = Ear()
    yield one
    one.close()


@pytest.fixture
def processes() -> Iterator[list[Any]]:
    """All that a test begins and hands over is killed, whatever became of it."""
    begun: list[Any] = []
    yield begun
    for process in begun:
        if process.exitcode is None:
            process.kill()
        process.join()


@pytest.fixture
def begin_by(ear: Ear, processes: list[Any]) -> Callable[..., targets.Kid]:
    """Begins a child of this process in one of the ways; it has arrived."""

    def begin_by(way: str, run: targets.Run, *args: Any, **more: Any) -> targets.Kid:
        kid = targets.begin(way, run, ear.address, *args, **more)
        processes.append(kid.process)
        return kid

    return begin_by


@pytest.fixture
def begin(begin_by: Callable[..., targets.Kid], method: str) -> Any:
    """The same, in each of the ways."""
    return functools.partial(begin_by, method)


@pytest.fixture
def fork(begin_by: Callable[..., targets.Kid]) -> Any:
    """The same, where the way makes no difference: in the fastest."""
    return functools.partial(begin_by, "fork")


@pytest.fixture
def program(processes: list[Any]) -> Callable[..., Any]:
    """Begins a program of its own, which is nobody's child."""

    def program(run: targets.Run, *args: Any, **more: Any) -> Any:
        context = multiprocessing.get_context("fork")
        process = context.Process(target=run, args=args, kwargs=more)
        process.start()
        processes.append(process)
        return process

    return program
