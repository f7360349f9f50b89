"""Engines in a real Jupyter kernel: interrupted, used on, closed, left open."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests import resources
from tests.hosts.flowing import FLOWING
from tests.hosts.notebook import GONE_SECONDS, Kernel

pytestmark = [pytest.mark.hosts, pytest.mark.real, pytest.mark.timeout(2000)]

ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

MAKE = {
    "LLM": "from tests.hosts.cells import *\nllm = make()\nask(llm)",
    "AsyncLLM": (
        "from tests.hosts.cells import *\n"
        "engine = make_engine()\n"
        "await aask(engine, 'first')"
    ),
}
"""A cell that makes an engine and uses it."""


@pytest.mark.parametrize(
    "environment", [{}, ONE_PROCESS], ids=["core process", "one process"]
)
def test_an_llm_is_interrupted_and_used_on_and_closed(
    tmp_path: Path, environment: dict[str, str]
):
    with Kernel(tmp_path, environment) as kernel:
        kernel.run(MAKE["LLM"])
        assert bool(kernel.children()) == (environment == {})
        cut = kernel.begin("telling(llm)\nask(llm, LONG)", until=FLOWING)
        kernel.interrupt()
        assert kernel.end(cut).error == "KeyboardInterrupt"
        assert "generate" in cut.trace
        kernel.run("ask(llm)")  # and neither here nor in the next is there a second
        kernel.run("assert llm.shutdown().clean\nis_closed(llm)")
        assert kernel.children() == []
        assert kernel.fail("ask(llm)") == "EngineClosedError"
        kernel.run("with make() as llm:\n    ask(llm)")  # there is room for another
        assert kernel.children() == []
        kernel.shut_down()
    assert kernel.faults() == []


def test_an_async_llm_lives_on_the_kernels_own_loop(tmp_path: Path):
    with Kernel(tmp_path) as kernel:
        kernel.run(MAKE["AsyncLLM"])
        cut = kernel.begin("await aask(engine, 'cut', LONG)", until=FLOWING)
        kernel.interrupt()
        # The kernel cancels what a cell awaits; IPython says in its words that it was.
        assert kernel.end(cut).error in ("CancelledError", "KeyboardInterrupt")
        kernel.run("await aask(engine, 'next')")
        kernel.run("assert (await engine.ashutdown()).clean")
        assert kernel.children() == []
        assert kernel.fail("await aask(engine, 'late')") == "EngineClosedError"
        kernel.shut_down()
    assert kernel.faults() == []


@pytest.mark.parametrize("now", [False, True], ids=["shut down", "killed"])
@pytest.mark.parametrize("kind", MAKE)
def test_a_kernel_that_ends_takes_an_open_engine_along(
    tmp_path: Path, kind: str, now: bool
):
    before = resources.memory_names()
    with Kernel(tmp_path) as kernel:
        kernel.run(MAKE[kind])
        processes = kernel.process.children(recursive=True)
        kinds = {resources.kind_of(one) for one in processes}
        assert {"EngineCore", "Worker"} <= kinds
        memory = set().union(*(resources.memory_of(one.pid) for one in processes))
        kernel.shut_down(now=now)
        _, alive = psutil.wait_procs(processes, timeout=GONE_SECONDS)
        assert alive == []
        assert (memory - before) & resources.memory_names() == set()
        if not now:
            assert kernel.faults() == []
