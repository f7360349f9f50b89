"""What a server must not leave behind, and whose it is.

Others run vLLM on the same machine at the same time, so nothing here is decided by
name: a process belongs to the server if it descends from it or shares its session, a
shared memory segment if one of those processes maps it or, where none is known to,
if it came up while the server lived and no process of anyone else's holds it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

__all__ = ["Watch", "free_port", "session", "tree"]

SHARED_MEMORY = Path("/dev/shm")

HOST = "127.0.0.1"


class Watch:
    """Looks at a server while it runs and says what is left of it afterwards.

    Args:
        server: The server's top process, which leads a session of its own.
        port: Where it listens.
        temporary: Its directory for temporary files, which nobody else uses.
        before: The names in /dev/shm before it was started.
    """

    def __init__(
        self, server: psutil.Process, port: int, temporary: Path, before: set[str]
    ) -> None:
        self._server = server
        self._port = port
        self._temporary = temporary
        self._before = before
        self._own_memory: set[str] = set()
        self._others_memory: set[str] = set()
        self._over = threading.Event()
        self._attendant = threading.Thread(target=self._attend, daemon=True)
        self._foreign: set[psutil.Process] = set()
        self.processes: dict[psutil.Process, str] = {}

    def start(self) -> None:
        """Keeps an eye on /dev/shm: who leaves something there may be gone later."""
        self._attendant.start()

    def _attend(self) -> None:
        known = set(self._before)
        while not self._over.wait(0.5):
            names = memory_names()
            if names - known:
                known |= names
                self._ask_others()

    def _ask_others(self) -> None:
        ours = {one.pid for one in tree(self._server) | session(self._server.pid)}
        for pid in set(psutil.pids()) - ours:
            self._others_memory |= memory_of(pid)

    def look(self) -> None:
        """Notes the server's processes and the shared memory that they map."""
        for process in (tree(self._server) | session(self._server.pid)) - self._foreign:
            # vLLM's children rename themselves; the last name says most.
            self.processes[process] = name_of(process)
            self._own_memory |= memory_of(process.pid)

    def stop(self) -> None:
        """Looks one last time and no more."""
        self._over.set()
        self._attendant.join()
        self.look()
        self.look_at_session()

    def disown(self, pid: int) -> None:
        """Says that process `pid`, although below the server, is not part of it."""
        process = psutil.Process(pid)
        self._foreign.add(process)
        self.processes.pop(process, None)

    def left(self, seconds: float = 1.0) -> list[str]:
        """What is left over, one line each, once the server has exited.

        Args:
            seconds: How long its processes may take to vanish after the top one: the
                resource tracker only then reads the end of its pipe.
        """
        self._over.set()
        self.look_at_session()
        _, alive = psutil.wait_procs(list(self.processes), timeout=seconds)
        found = [
            f"process {process.pid} {self.processes[process]}"
            for process in alive
            if is_alive(process)
        ]
        found += [
            f"shared memory {name}" for name in sorted(self._memory_left(seconds))
        ]
        found += [f"temporary file {name}" for name in self._temporary_left()]
        if not port_is_free(self._port):
            found.append(f"port {self._port} is taken")
        return found

    def _temporary_left(self) -> list[str]:
        return sorted(
            path.name
            for path in self._temporary.iterdir()
            # A cache of compiled kernels, there for the next start.
            if not path.name.startswith("torchinductor_")
        )

    def look_at_session(self) -> None:
        """Adds what has joined the session since; the top process may be gone."""
        for process in session(self._server.pid) - self._foreign:
            self.processes.setdefault(process, name_of(process))

    def _memory_left(self, seconds: float) -> set[str]:
        """What came up since the start, is still there, and is no one else's."""
        deadline = time.monotonic() + seconds
        left = memory_names() - self._before
        while left - self._own_memory:  # rare, so only then a dear search
            self._ask_others()
            # What no process holds at this moment may be on its way: a program makes
            # a semaphore and unlinks it, a resource tracker tidies up behind another.
            left = memory_names() - self._before - self._others_memory
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return left | (memory_names() & self._own_memory)


def memory_names() -> set[str]:
    """The names in /dev/shm; none where there is no such place."""
    if not SHARED_MEMORY.is_dir():
        return set()
    return {path.name for path in SHARED_MEMORY.iterdir()}


def memory_of(pid: int) -> set[str]:
    """The names in /dev/shm that process `pid` maps or has open."""
    proc = Path("/proc") / str(pid)
    prefix = f"{SHARED_MEMORY}/"
    try:
        maps = (proc / "maps").read_text(errors="replace")
        links = [_target(link) for link in (proc / "fd").iterdir()]
    except OSError:  # it is gone, or not ours to look at
        return set()
    paths = [line.partition(prefix)[2] for line in maps.splitlines() if prefix in line]
    paths += [link.removeprefix(prefix) for link in links if link.startswith(prefix)]
    return {path.removesuffix(" (deleted)") for path in paths}


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # closed since
        return ""


def tree(process: psutil.Process) -> set[psutil.Process]:
    """`process` and all that descends from it, as far as it lives."""
    try:
        return {process, *process.children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def session(leader: int) -> set[psutil.Process]:
    """The living processes of the session that `leader` leads, or has led.

    While one of them lives, the kernel gives the leader's pid to no one else.
    """
    found = set()
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == leader:
                found.add(psutil.Process(pid))
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            continue
    return {process for process in found if is_alive(process)}


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kills exactly these; psutil checks each one's start time first."""
    processes = list(processes)
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=5)


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs: a zombie has given back everything but its pid."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def name_of(process: psutil.Process) -> str:
    """What `ps` shows of it, shortened."""
    try:
        return " ".join(process.cmdline())[:100]
    except psutil.Error:
        return "(gone)"


def free_port() -> int:
    """A port that is free now. Another program may take it before the server does."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(port: int) -> bool:
    """Whether a new server could listen on `port` at once."""
    with socket.socket() as probe:
        # As servers do: connections that linger in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
