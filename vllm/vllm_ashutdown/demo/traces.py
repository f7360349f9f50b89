"""What a server leaves behind, measured from outside and without its help."""

from __future__ import annotations

import errno
import math
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, never written
GONE_SECONDS = 1.0
"""What the last process may take to follow the first one."""

Entry = tuple[str, int]
"""A name in /dev/shm and its inode."""

# torch's cache of compiled code, which is meant to stay.
_CACHES = "torchinductor_"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What was found after a server's end; each one empty where it should be.

    Attributes:
        processes: Of its session, still alive.
        shared_memory: Entries of /dev/shm.
        sockets: ipc socket files.
        files: Other files in its temporary directory.
        port: What is wrong with its port.
        watched: How many processes it had.
        gone_at: When the last of them was found gone, by the monotonic clock.
    """

    processes: tuple[str, ...]
    shared_memory: tuple[str, ...]
    sockets: tuple[str, ...]
    files: tuple[str, ...]
    port: str
    watched: int
    gone_at: float


class Traces:
    """Looks at one server before, while and after it runs."""

    def __init__(self) -> None:
        """Notes what is there before the server starts."""
        self._shared_before = _shared_memory()
        self._foreign: set[int] = set()
        self._seen: dict[tuple[int, float], str] = {}

    def look(self, session: int) -> None:
        """Notes who is in the server's session, and what belongs to others."""
        self._seen |= _session(session)
        self._foreign |= _mapped_by_others(session)

    def left(self, session: int, port: int, directory: Path) -> Leftovers:
        """What is left now that the server has ended."""
        deadline = time.monotonic() + GONE_SECONDS
        while (alive := self._alive(session)) and time.monotonic() < deadline:
            time.sleep(0.005)
        gone_at = time.monotonic()
        # Another program's segments may have come meanwhile: list first, so that
        # none can come between the list and the look at whose they are.
        new = _shared_memory() - self._shared_before
        self._foreign |= _mapped_by_others(session)
        sockets, files = _files(directory)
        return Leftovers(
            processes=tuple(alive),
            shared_memory=tuple(
                sorted(name for name, inode in new if inode not in self._foreign)
            ),
            sockets=sockets,
            files=files,
            port=_port_problem(port),
            watched=len(self._seen),
            gone_at=gone_at,
        )

    def _alive(self, session: int) -> list[str]:
        found = _session(session)
        for (pid, created), name in self._seen.items():
            try:
                process = psutil.Process(pid)
                if process.create_time() == created and not _is_over(process):
                    found[pid, created] = name
            except psutil.NoSuchProcess:
                continue
        return [f"{name} (pid {pid})" for (pid, _), name in found.items()]


def members(session: int, before: float = math.inf) -> list[psutil.Process]:
    """The living processes of a session, the oldest first.

    Args:
        session: Its id, which is the pid of its first process.
        before: Only those that began earlier, in seconds since the epoch: once the
            first process has gone, a stranger could get its pid.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if (
                os.getsid(process.pid) == session
                and process.create_time() < before
                and not _is_over(process)
            ):
                found.append(process)
        except (OSError, psutil.NoSuchProcess):
            continue
    return sorted(found, key=psutil.Process.create_time)


def _session(session: int) -> dict[tuple[int, float], str]:
    found = {}
    for process in members(session):
        try:
            found[process.pid, process.create_time()] = process.name()
        except psutil.NoSuchProcess:
            continue
    return found


def _is_over(process: psutil.Process) -> bool:
    # It holds nothing any more; its parent only has not asked yet how it ended.
    return bool(process.status() == psutil.STATUS_ZOMBIE)


def _shared_memory() -> set[Entry]:
    if not SHARED_MEMORY.is_dir():
        return set()
    with os.scandir(SHARED_MEMORY) as entries:
        return {(entry.name, entry.inode()) for entry in entries}


def _mapped_by_others(session: int) -> set[int]:
    """Inodes in /dev/shm that a process outside of the session has mapped.

    Not names: glibc makes a semaphore under another one and then links it, so its
    maker maps a name that is deleted.
    """
    inodes: set[int] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if os.getsid(int(maps.parent.name)) == session:
                continue
            lines = maps.read_text(errors="replace").splitlines()
        except OSError:  # it has gone, or is another user's
            continue
        # address, permissions, offset, device, inode, path
        inodes.update(
            int(line.split(maxsplit=5)[4])
            for line in lines
            if f" {SHARED_MEMORY}/" in line
        )
    return inodes


def _files(directory: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    sockets, files = [], []
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_socket():
            sockets.append(name)
        elif not path.is_dir() and not name.startswith(_CACHES):
            files.append(name)
    return tuple(sockets), tuple(files)


def _port_problem(port: int) -> str:
    with socket.socket() as probe:
        answer = probe.connect_ex(("127.0.0.1", port))
    if answer != errno.ECONNREFUSED:
        return "still answers" if answer == 0 else os.strerror(answer)
    with socket.socket() as probe:
        # As every server does: connections that are over may still be remembered.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return f"cannot be bound: {error.strerror}"
    return ""
