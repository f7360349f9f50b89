"""``AsyncLLM._run_output_handler`` stays callable on what only looks like an engine.

vLLM's own tests of the multimodal cache call it unbound, on a namespace with the
attributes that stock's method reads and no others.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.engine.async_llm import AsyncLLM


class Cache:
    """Notes what is invalidated."""

    def __init__(self) -> None:
        self.invalidated: list[str] = []

    def invalidate(self, mm_hash: str) -> None:
        self.invalidated.append(mm_hash)


async def test_it_runs_unbound_on_a_plain_namespace():
    cache = Cache()
    outputs: asyncio.Queue[EngineCoreOutputs] = asyncio.Queue()
    processed = asyncio.Event()

    def process_outputs(*args: object, **kwargs: object) -> SimpleNamespace:
        processed.set()
        return SimpleNamespace(request_outputs=[], reqs_to_abort=[])

    engine = SimpleNamespace(
        output_handler=None,
        engine_core=SimpleNamespace(get_output_async=outputs.get),
        output_processor=SimpleNamespace(
            process_outputs=process_outputs,
            update_scheduler_stats=lambda stats: None,
            propagate_error=pytest.fail,
        ),
        log_stats=False,
        logger_manager=None,
        renderer=SimpleNamespace(mm_processor_cache=cache, stat_mm_cache=lambda: None),
    )
    AsyncLLM._run_output_handler(engine)
    task = engine.output_handler
    assert isinstance(task, asyncio.Task)
    AsyncLLM._run_output_handler(engine)
    assert engine.output_handler is task  # once

    missed = EngineCoreOutput("r", [1], finish_reason=FinishReason.LENGTH)
    missed.mm_cache_miss_hashes = ["a", "b"]
    outputs.put_nowait(EngineCoreOutputs(outputs=[missed]))
    await asyncio.wait_for(processed.wait(), 5)
    await asyncio.sleep(0)
    assert cache.invalidated == ["a", "b"]

    # Nothing of the shutdown is needed to end it.
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
