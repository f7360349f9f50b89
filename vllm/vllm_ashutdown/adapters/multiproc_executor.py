"""vllm.v1.executor.multiproc_executor: workers end fast, and are awaited by event."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from .. import register
from ..process_exit import leaves_fast, run_and_leave, stop_collecting
from ..seams import installer

logger = logging.getLogger("vllm.ashutdown")

SEAM = "WorkerProc.worker_main"
TERMINATE_SECONDS = 4.0
"""What a worker gets between SIGTERM and SIGKILL: vLLM's own figure."""


def make_worker_main(original: Callable[..., None]) -> Callable[..., None]:
    """``WorkerProc.worker_main``."""
    return worker_main


def worker_main(*args: Any, **kwargs: Any) -> None:
    """Runs vLLM's own worker, then leaves by the fast exit."""
    register()
    from vllm.v1.executor.multiproc_executor import WorkerProc

    own = installer.original_or(SEAM, WorkerProc.worker_main)
    run_and_leave(own, *args, **kwargs)


def make_shutdown(original: Callable[..., None]) -> Callable[..., None]:
    """``WorkerProc.shutdown``: the last thing that a worker process does."""

    @functools.wraps(original)
    def shutdown(self: Any) -> None:
        stop_collecting()
        keep_process_groups()
        keep_model(self)
        original(self)

    return shutdown


_kept: list[Any] = []


def keep_process_groups() -> None:
    """Leaves the memory of torch's process groups to the process's end.

    They are shut down and unregistered like always. But the destructor of a
    gloo group then joins a thread that looks up from its poll every 10 ms, one
    group after the other, and vLLM makes six.
    """
    if leaves_fast() and torch_is_initialized():
        from torch.distributed import distributed_c10d

        _kept.extend(distributed_c10d._world.pg_map)


def keep_model(worker: Any) -> None:
    """Leaves weights and KV cache to the process's end.

    Taking them apart tensor by tensor costs a tenth of the whole stop, and the
    kernel, or the device's driver, takes them back in one piece a moment later.
    """
    runner = getattr(getattr(worker.worker, "worker", None), "model_runner", None)
    if leaves_fast() and runner is not None:
        _kept.append(dict(vars(runner)))
        _kept.append(list(getattr(runner, "kv_caches", None) or ()))


def torch_is_initialized() -> bool:
    """Whether there are process groups at all."""
    import torch.distributed

    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def make_ensure_worker_termination(original: Callable[..., None]) -> Any:
    """``MultiprocExecutor._ensure_worker_termination``."""
    return ensure_worker_termination


def ensure_worker_termination(worker_procs: Sequence[Any]) -> None:
    """Waits for workers that are asked to leave; terminates, then kills the rest.

    The same steps and times as vLLM's, with an event to wait for instead of a
    look every 0.1 s.
    """
    import vllm.envs as envs

    grace = float(envs.VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS)
    left = _alive_after(worker_procs, grace)
    if not left:
        return
    logger.warning(
        "[shutdown] %s did not leave within %.0fs: SIGTERM", _names(left), grace
    )
    for process in left:
        process.terminate()
    left = _alive_after(left, TERMINATE_SECONDS)
    if not left:
        return
    logger.warning("[shutdown] %s outlasted SIGTERM: SIGKILL", _names(left))
    for process in left:
        process.kill()


def _alive_after(processes: Sequence[Any], seconds: float) -> list[Any]:
    until = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
    return [process for process in processes if process.is_alive()]


def _names(processes: Sequence[Any]) -> str:
    return ", ".join(f"{process.name} (pid {process.pid})" for process in processes)
