"""What an engine in this process held is free when its core has stopped."""

from __future__ import annotations

import gc
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vllm_ashutdown.adapters import in_process


class Layer(torch.nn.Module):
    """With the cycles that vLLM's layers have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.weight.weight_loader = self.load
        self._forward_method = self.forward

    def load(self) -> None:
        """As vLLM finds it: by the parameter."""


class Core:
    """As vLLM's, as far as it is looked at."""

    def __init__(self, deep: Any = None) -> None:
        self.deep = deep
        runner = SimpleNamespace(
            model=torch.nn.Sequential(Layer(), Layer()),
            kv_caches=[torch.ones(4), (torch.ones(4), torch.ones(4))],
        )
        runner.itself = runner
        worker = SimpleNamespace(model_runner=runner)
        wrapper = SimpleNamespace(worker=worker)
        self.model_executor = SimpleNamespace(driver_worker=wrapper)
        self.scheduler = SimpleNamespace(blocks=[1, 2, 3])

    def shutdown(self) -> None:
        runner = self.model_executor.driver_worker.worker.model_runner
        gc.collect()
        runner.model = None
        runner.kv_caches.clear()


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often garbage was really collected."""
    times: list[int] = []
    real = gc.collect
    monkeypatch.setattr(gc, "collect", lambda *a: times.append(1) or real(*a))
    return times


@pytest.fixture(autouse=True)
def _no_luck():
    gc.disable()
    yield
    gc.enable()


def tensors(core: Core) -> list[weakref.ref[Any]]:
    runner = core.model_executor.driver_worker.worker.model_runner
    caches = [runner.kv_caches[0], *runner.kv_caches[1]]
    return [weakref.ref(one) for one in (*runner.model.parameters(), *caches)]


def test_weights_and_cache_are_free_and_no_garbage_was_collected(collected, log):
    core = Core()
    held = tensors(core)
    client = SimpleNamespace(engine_core=core, shutdown=core.shutdown)
    assert "5 tensors" in in_process.stop(client)
    assert [one() for one in held] == [None] * 5
    assert not collected
    assert not log.records


def test_a_cycle_that_nobody_knows_of_is_collected(collected, log):
    core = Core()
    runner = core.model_executor.driver_worker.worker.model_runner
    cycle: list[Any] = [runner.kv_caches[0]]
    cycle.append(cycle)
    held = tensors(core)
    del cycle, runner
    in_process.stop(SimpleNamespace(engine_core=core, shutdown=core.shutdown))
    assert [one() for one in held] == [None] * 5
    assert collected == [1]
    assert not log.records


def test_what_the_program_holds_stays_its_own_and_is_told(log):
    core = Core()
    runner = core.model_executor.driver_worker.worker.model_runner
    mine = next(runner.model.parameters())
    del runner
    in_process.stop(SimpleNamespace(engine_core=core, shutdown=core.shutdown))
    assert mine.sum() == 4
    (record,) = log.records
    assert "1 of 5 tensors" in record.getMessage()
    assert "stay in memory" in record.getMessage()


def test_the_model_that_drafts_is_free_too(collected):
    core = Core()
    runner = core.model_executor.driver_worker.worker.model_runner
    runner.drafter = SimpleNamespace(model=Layer())
    held = [*tensors(core), weakref.ref(runner.drafter.model.weight)]
    del runner
    in_process.stop(SimpleNamespace(engine_core=core, shutdown=core.shutdown))
    assert [one() for one in held] == [None] * 6
    assert not collected


def test_a_core_that_fails_to_stop_is_free_all_the_same():
    def fails() -> None:
        raise RuntimeError("a connector")

    core = Core()
    held = tensors(core)
    with pytest.raises(RuntimeError, match="a connector"):
        in_process.stop(SimpleNamespace(engine_core=core, shutdown=fails))
    assert [one() for one in held] == [None] * 5


def test_one_that_somebody_steps_in_is_not_taken_apart():
    core = Core()
    runner = core.model_executor.driver_worker.worker.model_runner
    client = SimpleNamespace(engine_core=core, shutdown=lambda: None)
    in_process.stop(client, in_use=True)
    assert runner.model is not None


def test_garbage_of_other_threads_is_collected_meanwhile(collected):
    def elsewhere() -> None:
        collecting = threading.Thread(target=gc.collect)
        collecting.start()
        collecting.join()

    core = Core()
    in_process.stop(SimpleNamespace(engine_core=core, shutdown=elsewhere))
    assert collected[0] == 1


@pytest.mark.parametrize(
    "core", [None, SimpleNamespace(), SimpleNamespace(scheduler=None)]
)
def test_one_that_is_half_built(core):
    in_process.stop(SimpleNamespace(engine_core=core, shutdown=lambda: None))
