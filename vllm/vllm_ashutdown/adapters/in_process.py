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

_DRAFTERS = ("drafter", "speculator")
"""Attributes of a runner that may have a model of their own."""


def stop(client: Any, *, in_use: bool = False) -> str:
    """Stops the core of vLLM's ``InprocClient``.

    Args:
        client: vLLM's.
        in_use: Somebody steps in it and does not come to an end.

    Returns:
        What to say about it.
    """
    core = getattr(client, "engine_core", None)
    worker = _worker(core)
    runner = getattr(worker, "model_runner", None)
    held = [weakref.ref(tensor) for tensor in _tensors(runner)]
    for model in _models(runner):
        _break_cycles(model)
    model = None
    try:
        with _without_collecting():
            client.shutdown()
    finally:
        for part in (runner, worker, getattr(core, "scheduler", None)):
            if part is not None and not in_use:
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


def _models(runner: Any) -> Iterator[Any]:
    """The model, and the one that drafts for it."""
    for holder in (runner, *(getattr(runner, name, None) for name in _DRAFTERS)):
        model = getattr(holder, "model", None)
        if hasattr(model, "parameters"):
            yield model


def _tensors(runner: Any) -> Iterator[Any]:
    """The weights, and the KV cache."""
    for model in _models(runner):
        yield from model.parameters()
        yield from model.buffers()
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
                vars(holder).pop(name)


@contextlib.contextmanager
def _without_collecting() -> Generator[None, None, None]:
    """Lets no garbage be collected by this thread; others may.

    Where there is a device its memory counts for more than the time.
    """
    if _accelerator() is not None:
        yield
        return
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
    accelerator = _accelerator()
    if accelerator is not None:
        import torch

        getattr(accelerator, "empty_cache", torch.cuda.empty_cache)()


def _accelerator() -> Any:
    """torch's module for the device, if there is one."""
    import torch

    accelerator = getattr(torch, "accelerator", None)
    available = accelerator is not None and accelerator.is_available()
    return accelerator if available else None
