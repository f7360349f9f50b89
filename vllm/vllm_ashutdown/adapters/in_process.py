"""An engine core in the program's own process: what it holds is free when it stops.

Where the core is a process, its end gives everything back. Here weights and KV cache
belong to the program, and are free when nothing refers to them any more. vLLM leaves
cycles of references behind and collects garbage to be rid of them: seconds, for a heap
with torch in it, and in vain where something outside holds on. So the cycles are
broken, and garbage is collected only if that was not enough.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import logging
import threading
import weakref
from collections.abc import Generator, Iterator
from typing import Any

logger = logging.getLogger("vllm.ashutdown")


def stop(client: Any) -> str:
    """Stops the core of vLLM's ``InprocClient``, once nothing steps in it.

    Returns:
        What to say about it.
    """
    core = getattr(client, "engine_core", None)
    worker = _worker(core)
    runner = getattr(worker, "model_runner", None)
    model = getattr(runner, "model", None)
    held = [weakref.ref(tensor) for tensor in _tensors(runner, model)]
    if model is not None:
        _break_cycles(model)
    del model
    with _without_collecting():
        client.shutdown()
    for part in (runner, worker, getattr(core, "scheduler", None)):
        if part is not None:
            vars(part).clear()
    if any(tensor() is not None for tensor in held):
        gc.collect()
    _give_back_to_device()
    left = sum(tensor() is not None for tensor in held)
    if left:
        logger.warning(
            "[shutdown] %d of %d tensors of the model and its KV cache are held by "
            "something outside of the engine, and stay in memory",
            left,
            len(held),
        )
    return f"it was in this process, with {len(held)} tensors"


def _worker(core: Any) -> Any:
    """The worker that runs in this process, if there is one."""
    wrapper = getattr(getattr(core, "model_executor", None), "driver_worker", None)
    return getattr(wrapper, "worker", None)


def _tensors(runner: Any, model: Any) -> Iterator[Any]:
    """The weights, and the KV cache."""
    if model is not None:
        yield from model.parameters()
    for cache in getattr(runner, "kv_caches", None) or ():
        yield from cache if isinstance(cache, list | tuple) else (cache,)


def _break_cycles(model: Any) -> None:
    """Takes from modules and parameters the methods that refer back to a module.

    Parameters have those by which vLLM loads weights, modules those of their own that
    suit the platform. Outside of an engine none of its modules can compute anyway; who
    holds on to a tensor keeps it.
    """
    for holder in (*model.parameters(), *model.modules()):
        for name, value in list(vars(holder).items()):
            if inspect.ismethod(value):
                delattr(holder, name)


@contextlib.contextmanager
def _without_collecting() -> Generator[None, None, None]:
    """Lets no garbage be collected by this thread; others may."""
    collect, here = gc.collect, threading.get_ident()

    def collect_elsewhere(generation: int = 2) -> int:
        return 0 if threading.get_ident() == here else collect(generation)

    gc.collect = collect_elsewhere
    try:
        yield
    finally:
        gc.collect = collect


def _give_back_to_device() -> None:
    """What torch keeps for later of a device's memory is of no use to anyone now."""
    import torch

    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None and accelerator.is_available():
        torch.cuda.empty_cache()
