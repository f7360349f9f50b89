"""What the plugin may import in an engine core or a worker, and what it costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.figures import Median
from benchmarks.load import CORE, ROLES, SERVER, Cost, Load, cost_of, is_third_party

SOURCE_ROOT = Path(__file__).parents[2] / "vllm"

ADAPTERS = (
    *("coordinator", "core", "engine_utils", "envs", "multiproc_executor"),
    *("network_utils", "shared_offload_region", "shm_broadcast"),
    *("shm_object_storage", "system_utils", "utils"),
)
"""Of the modules of vLLM's that its engine core imports; a worker's are fewer."""

PROGRAM = f"""
import importlib, json, sys
import msgspec  # each process of vLLM's has it
before = set(sys.modules)
sys.path.insert(0, {str(SOURCE_ROOT)!r})
import vllm_ashutdown
vllm_ashutdown.register()
for name in {ADAPTERS!r}:
    importlib.import_module(f"vllm_ashutdown.adapters.{{name}}")
print(json.dumps(sorted(set(sys.modules) - before)))
"""

THE_SERVERS_OWN = (
    *("starting", "watchdog", "report_file", "reclaiming", "inventory", "http"),
    *("core.stop", "core.order", "core.reclaim", "core.report", "core.phase"),
    *("core.mode", "core.trigger", "tree.stopping", "tree.belongings"),
)
"""Nothing in a core or a worker has a use for these, and they are dear."""


def test_cores_and_workers_import_nothing_that_they_have_no_use_for():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    modules = json.loads(done.stdout)
    assert "vllm_ashutdown.adapters.core" in modules
    assert [name for name in modules if is_third_party(name)] == []
    assert not {f"vllm_ashutdown.{name}" for name in THE_SERVERS_OWN} & set(modules)


A_WORKERS = tuple(
    name for name in ADAPTERS if name not in ("coordinator", "core", "engine_utils")
)
A_PARENTS = ("tree.home", "tree.door", "tree.record", "tree.reaping", "tree.ending")


def test_a_worker_imports_nothing_that_only_a_parent_needs():
    program = PROGRAM.replace(repr(ADAPTERS), repr(A_WORKERS))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    modules = json.loads(done.stdout)
    assert "vllm_ashutdown.adapters.multiproc_executor" in modules
    assert not {f"vllm_ashutdown.{name}" for name in A_PARENTS} & set(modules)


SERVERS = (*("async_llm", "launcher", "utils", "serve", "entry"), *ADAPTERS)

ONLY_STOPS = (
    *("inventory", "watchdog", "core.stop", "core.order", "core.report", "http.gate"),
    *("tree.stopping", "tree.belongings", "adapters.async_llm_run", "telling.title"),
)


def test_a_server_imports_what_only_a_stop_needs_when_it_gets_ready():
    program = f"""
import importlib, json, sys
sys.path.insert(0, {str(SOURCE_ROOT)!r})
for name in {SERVERS!r}:
    importlib.import_module(f"vllm_ashutdown.adapters.{{name}}")
before = list(sys.modules)
importlib.import_module("vllm_ashutdown.adapters.readiness").get_ready()
print(json.dumps([before, list(sys.modules)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    before, ready = map(set, json.loads(done.stdout))
    wanted = {f"vllm_ashutdown.{name}" for name in ONLY_STOPS}
    assert not wanted & before
    assert wanted <= ready


@pytest.mark.parametrize(
    ("module", "third_party"),
    [
        ("anyio._backends._asyncio", True),
        ("torch", True),
        ("json.decoder", False),
        ("__main__", False),
        ("vllm.envs", False),
        ("vllm_ashutdown.seams", False),
        ("vllm_other", True),
    ],
)
def test_whose_a_module_is(module, third_party):
    assert is_third_party(module) is third_party


def test_a_cost_is_the_middle_of_what_processes_have_measured():
    loaded = Load(0.020, 2_500_000, ("dear",), 50, 4.0, 0.011)
    slow = Load(0.090, 2_500_000, (), 49, 9.0, 0.011)
    cost = cost_of(CORE, [slow, *[loaded] * 6])
    assert cost.milliseconds.value == pytest.approx(20)
    assert cost.later.value == pytest.approx(11)
    assert cost.megabytes.value == pytest.approx(2.5)
    assert (cost.third_party, cost.own) == (("dear",), 50)
    assert cost.share == pytest.approx(0.005)


def cost(
    role: str = CORE, ms: float = 20.0, mb: float = 2.0, third: tuple[str, ...] = ()
) -> Cost:
    dear, large = Median(ms, None, None), Median(mb, None, None)
    return Cost(role, dear, Median(99.0, None, None), large, third, 50, 4.0)


@pytest.mark.parametrize(
    "broken",
    [cost(ms=30.1), cost(mb=5.1), cost(third=("anyio",)), cost(SERVER, ms=31)],
)
def test_each_promise_that_is_broken_is_told(broken):
    assert len(list(broken.broken)) == 1


@pytest.mark.parametrize("role", ROLES)
def test_a_kept_promise_is_not(role):
    assert list(cost(role, 29.9, 4.9).broken) == []
    assert list(cost(SERVER, third=("anyio",)).broken) == []
