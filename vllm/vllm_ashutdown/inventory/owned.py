"""What belongs to one instance, and to nobody else on the machine.

Others run vLLM beside it, and a library shares its process with its host. So nothing
is the instance's by its name alone: whoever made a thing, or saw it made, says so here.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from typing import Any

from msgspec import Struct

from . import view
from .groups import initialised_groups


class Process(Struct, frozen=True):
    """One process of the instance: a core, a worker, an API server, a coordinator.

    Attributes:
        pid: Its process id, which the kernel gives to others later.
        start: When it was started, in seconds since the system's, as
            :meth:`of` reads it. With ``pid`` it means this process only.
        name: What it is called, for people.
    """

    pid: int
    start: float
    name: str

    @classmethod
    def of(cls, pid: int, name: str = "") -> Process | None:
        """Process ``pid`` as it is now; ``None`` if it is gone or a zombie.

        Args:
            pid: Its process id.
            name: What to call it. Without one the kernel's name for it is taken.
        """
        start = start_of(pid)
        if start is None:
            return None
        return cls(pid, start, name or _name_of(pid))

    @property
    def is_alive(self) -> bool:
        """It runs. A zombie, or another process under its pid, does not count."""
        return start_of(self.pid) == self.start

    @property
    def is_replaced(self) -> bool:
        """Its pid is another process's by now."""
        return start_of(self.pid) not in (None, self.start)

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


class Baseline(Struct, frozen=True):
    """What was there before the instance. None of it is the instance's.

    Attributes:
        memory: Names in /dev/shm, semaphores among them, and what this process
            maps from there without a name.
        threads: Native ids of this process's threads.
        groups: Process groups of ``torch.distributed`` in this process.
    """

    memory: frozenset[str] = frozenset()
    threads: frozenset[int] = frozenset()
    groups: frozenset[str] = frozenset()


class Owned(Struct, frozen=True):
    """What belongs to one instance, as far as it is known.

    It keeps nothing alive but the loop.

    Attributes:
        processes: Its processes. This process is not one of them: what the
            instance has here, the other attributes say.
        memory: Names of POSIX shared memory segments that were recorded when
            they were made, with or without the leading slash.
        semaphores: The same for named semaphores.
        ipc: Paths of the UNIX sockets that ZMQ talks through.
        files: Paths of other temporary files and directories.
        ports: Host and TCP port of each listening socket of this process. An
            empty host, a wildcard or a host's name stands for any address.
        uds: Paths of the UNIX sockets that serve HTTP.
        threads: Native ids of threads that are its own, whatever their names.
        spared: Native ids of threads that carry out the stop, and end after it.
        references: Named weak references to what must be collected.
        loop: The event loop that it lives on.
        homes: The packages whose coroutines are its tasks. HTTP closes beside
            the engine; add ``vllm.entrypoints`` for a look after both.
        ask_devices: NVML may be imported to look. Otherwise GPUs are looked at
            only where something else in this process has imported it.
        baseline: What was there before it.
    """

    processes: tuple[Process, ...] = ()
    memory: frozenset[str] = frozenset()
    semaphores: frozenset[str] = frozenset()
    ipc: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    ports: frozenset[tuple[str, int]] = frozenset()
    uds: frozenset[str] = frozenset()
    threads: frozenset[int] = frozenset()
    spared: frozenset[int] = frozenset()
    references: tuple[tuple[str, weakref.ref[Any]], ...] = ()
    loop: asyncio.AbstractEventLoop | None = None
    homes: tuple[str, ...] = ("vllm.v1",)
    ask_devices: bool = False
    baseline: Baseline = Baseline()


def family(pid: int) -> tuple[Process, ...]:
    """Process ``pid`` and all that descends from it, as far as it lives.

    Take it while the parents live: an orphan's parent is someone else. It reads the
    table of the machine's processes, which takes milliseconds.
    """
    import psutil

    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return ()
    pids = [pid, *(child.pid for child in children)]
    return tuple(found for found in map(Process.of, pids) if found is not None)


def take_baseline() -> Baseline:
    """What there is now, before an instance is made."""
    here = view.View(Owned())
    return Baseline(
        memory=here.memory_names() | {one.name for one in here.held(os.getpid())},
        threads=frozenset(
            thread.native_id
            for thread in threading.enumerate()
            if thread.native_id is not None
        ),
        groups=initialised_groups(),
    )


# -- when a process was started -------------------------------------------------


def start_of(pid: int) -> float | None:
    """When process ``pid`` was started, in seconds since the system was.

    ``None`` if it is gone, or a zombie: that has given back everything but its pid.
    """
    if view.PROC.is_dir():
        return _start_in_proc(pid)
    return _start_by_psutil(pid)


def _start_in_proc(pid: int) -> float | None:
    try:
        stat = (view.PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # proc_pid_stat(5). The name before these may hold blanks and parentheses.
    fields = stat.rpartition(b")")[2].split()
    state, threads, ticks = fields[0], int(fields[17]), int(fields[19])
    # Where only the main thread has ended, the others still hold all there is.
    if state in (b"Z", b"X") and threads <= 1:
        return None
    return ticks / os.sysconf("SC_CLK_TCK")


def _start_by_psutil(pid: int) -> float | None:
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return float(process.create_time())
    except psutil.NoSuchProcess:
        return None


def _name_of(pid: int) -> str:
    import psutil

    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "process"
