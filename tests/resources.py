"""What a server must not leave behind, and whose it is.

Others run vLLM on the same machine at the same time, so nothing here is decided by
name: a process belongs to the server if it descends from it or shares its session, a
shared memory segment if one of those processes is seen to map it. What nobody is seen
to map is the server's too, if it came up while the server lived and no one else is at
work in that place: others' processes may be killed with theirs.
"""

from __future__ import annotations

import math
import os
import re
import select
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.address import HOST

__all__ = ["Gone", "Watch", "free_port", "kind_of", "session", "tree"]

SHARED_MEMORY = Path("/dev/shm")

_TITLE = re.compile(r"VLLM::(?:DP)?(APIServer|EngineCore|Worker|Coordinator)")
"""The title that vLLM gives each of its children, as far as it says the kind."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Whether all processes of a server are gone, and since when.

    Attributes:
        left: What still ran when the time was up, one line each.
        at: The moment at which the last of the others ended, on `time.monotonic`.
    """

    left: list[str]
    at: float


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
        self._handles: dict[psutil.Process, int] = {}
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
                self._ask()

    def _ask(self) -> None:
        """Notes which names are held now, and by whom."""
        ours = {one.pid for one in tree(self._server) | session(self._server.pid)}
        for pid in set(psutil.pids()) - {os.getpid()}:
            held = self._own_memory if pid in ours else self._others_memory
            held |= memory_of(pid)

    def look(self) -> None:
        """Notes the server's processes and the shared memory that they map."""
        for process in (tree(self._server) | session(self._server.pid)) - self._foreign:
            # vLLM's children rename themselves; the last name says most.
            self._add(process, name_of(process))
            self._own_memory |= memory_of(process.pid)

    def _add(self, process: psutil.Process, name: str) -> None:
        self.processes[process] = name
        if process in self._handles:
            return
        try:
            handle = os.pidfd_open(process.pid)
        except ProcessLookupError:  # it is gone
            return
        if process.is_running():  # and not another one of the same pid
            self._handles[process] = handle
        else:
            os.close(handle)

    def gone_within(self, seconds: float) -> Gone:
        """Waits until each process that was seen has ended; a zombie has."""
        until = time.monotonic() + seconds
        self.look_at_session()
        poll = select.poll()
        running = {
            handle: process
            for process, handle in self._handles.items()
            if process in self.processes
        }
        for handle in running:
            poll.register(handle, select.POLLIN)
        at = time.monotonic()
        while running:
            left = max(0.0, until - time.monotonic())
            ended = poll.poll(math.ceil(1000 * left))
            if not ended:
                break
            at = time.monotonic()
            for handle, _ in ended:
                poll.unregister(handle)
                del running[handle]
        return Gone(
            [f"{one.pid} {self.processes[one]}" for one in running.values()], at
        )

    def stop(self) -> None:
        """Looks one last time and no more."""
        self._over.set()
        self._attendant.join()
        self.look()
        self.look_at_session()
        while self._handles:
            os.close(self._handles.popitem()[1])

    def take_away(self) -> None:
        """Removes what it was seen to have in /dev/shm, once its processes are over.

        A server that was killed leaves that, and one without the plugin leaves it for
        good: some hundreds of megabytes each time.
        """
        self._ask()
        for name in self._own_memory - self._before - self._others_memory:
            (SHARED_MEMORY / name).unlink(missing_ok=True)

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
            if process not in self.processes:
                self._add(process, name_of(process))

    def _memory_left(self, seconds: float) -> set[str]:
        """What came up since the start, is still there, and is no one else's."""
        deadline = time.monotonic() + seconds
        while True:
            own = memory_names() & self._own_memory
            unknown = memory_names() - self._before - self._own_memory
            if unknown:  # rare, so only then a dear search
                self._ask()
            if not unknown or self._others_memory:
                return own
            # What no process holds at this moment may be on its way: a program makes
            # a semaphore and unlinks it, a resource tracker tidies up behind another.
            if time.monotonic() > deadline:
                return own | unknown
            time.sleep(0.05)


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


def kind_of(process: psutil.Process) -> str:
    """What a child of vLLM's is; ``other`` if neither title nor command line tell."""
    name = name_of(process)
    title = _TITLE.match(name)
    if title is not None:
        return title[1]
    return "resource_tracker" if "resource_tracker" in name else "other"


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
