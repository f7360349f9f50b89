"""vllm.v1.executor.multiproc_executor: workers end fast, and are awaited by event."""

from __future__ import annotations

import functools
import logging
import multiprocessing.process
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

from .. import register
from ..core.files import Kind, ledger
from ..core.memory import Span, give_back
from ..process_exit import at_last, leaves_fast, run_and_leave, stop_collecting
from ..seams import installer
from ..tree import child
from ..tree.entry import Entry
from ..tree.part import Part
from ..tree.place import home, take_in
from ..tree.signals import Signals

logger = logging.getLogger("vllm.ashutdown")

SEAM = "WorkerProc.worker_main"
TERMINATE_SECONDS = 4.0
"""What a worker gets between SIGTERM and SIGKILL: vLLM's own figure."""

WORKERS_SHARE = 0.6
"""Of what a core has left for its whole stop: the workers' part, before it kills."""

ORPHANS_SECONDS = 0.2
"""What workers get to leave by themselves when one of them has died."""


def make_worker_main(original: Callable[..., None]) -> Callable[..., None]:
    """``WorkerProc.worker_main``."""
    return Entry(worker_main, original)


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
        caches = list(getattr(runner, "kv_caches", None) or ())
        _kept.append(dict(vars(runner)))
        _kept.append(caches)
        at_last(functools.partial(give_back, list(_host_memory(caches))))


def _host_memory(tensors: Iterable[Any]) -> Iterator[Span]:
    """Where those of ``tensors`` lie that are in this machine's own memory."""
    import torch

    for tensor in tensors:
        if isinstance(tensor, list | tuple):
            yield from _host_memory(tensor)
        elif isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
            storage = tensor.untyped_storage()
            yield storage.data_ptr(), storage.nbytes()


def torch_is_initialized() -> bool:
    """Whether there are process groups at all."""
    import torch.distributed

    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def make_make_worker_process(original: Callable[..., Any]) -> Callable[..., Any]:
    """``WorkerProc.make_worker_process``."""

    @functools.wraps(original)
    def make_worker_process(*args: Any, **kwargs: Any) -> Any:
        home()  # there before it is: forked, it inherits its address
        # A worker has none of its own and never needs it; here it is there in time.
        from ..tree import ending  # noqa: F401

        handle = original(*args, **kwargs)
        take_in([handle.proc], Part.WORKER)
        return handle

    return make_worker_process


def make_wait_for_ready(original: Callable[..., Any]) -> Callable[..., Any]:
    """``WorkerProc.wait_for_ready``."""

    @functools.wraps(original)
    def wait_for_ready(*args: Any, **kwargs: Any) -> Any:
        workers = original(*args, **kwargs)
        if child.current() is not None:
            # Every worker has opened the lock that they share. Its name is needed
            # no more, and a core that is killed would leave it.
            ledger.remove(
                path for kind, path in ledger.owned() if kind == Kind.SEMAPHORE
            )
        return workers

    return wait_for_ready


def make_ensure_worker_termination(original: Callable[..., None]) -> Any:
    """``MultiprocExecutor._ensure_worker_termination``."""
    return ensure_worker_termination


def ensure_worker_termination(worker_procs: Sequence[Any]) -> None:
    """Waits for workers that are asked to leave; tells, then kills the rest.

    The same steps as vLLM's, within what this process itself has left, and with an
    event to wait for instead of a look every 0.1 s. The parent is told how each ended.
    """
    import vllm.envs as envs

    from ..tree.ending import alive_after, ask, kill, leaving, staying_after

    me = os.getpid()
    if any(getattr(one, "_parent_pid", me) != me for one in worker_procs):
        return  # a forked child has inherited the object: they are its parent's
    grace = float(envs.VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS)
    more = TERMINATE_SECONDS
    tie = child.current()
    if tie is not None and tie.allowance is not None:
        left = tie.allowance.left() * WORKERS_SHARE
        grace, more = min(grace, left), min(more, max(0.0, left - grace))
    elif any(process.exitcode for process in worker_procs):
        # One has died. The others wait for it in a collective, and nobody can
        # tell them otherwise.
        grace, more = min(grace, ORPHANS_SECONDS), 0.0
    before = [process for process in worker_procs if process.exitcode is None]
    # Who is the whole of its process, and leaves it next, need not see their memory
    # given back: its parent does.
    waited = staying_after if tie is not None and leaves_fast() else alive_after
    left_over = waited(before, grace)
    if left_over and more:
        ask(left_over, more)
        left_over = waited(left_over, more)
    killed = kill(left_over, tell=True)
    if tie is not None:
        for process in worker_procs:
            code = process.exitcode
            if code is None:
                code = leaving(process)
                _wait_no_more(process)
            was_killed = process.pid in killed or code == -signal.SIGKILL
            # As the fields of a ProcessEnd: its module is not needed here otherwise.
            end = {"name": process.name, "pid": process.pid, "exitcode": code}
            tie.send({"is": "ended", "end": end | {"killed": was_killed}})


def _wait_no_more(process: Any) -> None:
    """Has ``multiprocessing`` not wait for ``process`` on its own way out."""
    multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]


def make_signal(original: ModuleType) -> ModuleType:
    """``signal``, as vLLM's module has imported it."""
    return Signals()
