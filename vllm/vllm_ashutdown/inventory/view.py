"""One look at the machine: what several probes ask for is read once.

Everything here is about named processes, never about the whole machine: a shutdown
has no time to read what others have open, and no right to.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from .owned import Owned, Process

PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (looked into, never written to)

_UNLINKED = " (deleted)"
"""What Linux puts behind the path of a file that has lost its name."""


class Held(Struct, frozen=True):
    """What a process maps or has open in /dev/shm.

    Attributes:
        name: Its name there. A semaphore's begins with ``sem.``.
        unlinked: It has lost the name; the memory goes with its last holder.
    """

    name: str
    unlinked: bool


class View:
    """What there is at one moment. Made for one look, and then thrown away.

    A process that vanishes meanwhile, or that may not be looked at, has nothing.
    """

    def __init__(self, owned: Owned) -> None:
        self.owned = owned
        self._links: dict[int, dict[int, str]] = {}
        self._held: dict[int, frozenset[Held]] = {}

    @functools.cached_property
    def living(self) -> tuple[Process, ...]:
        """The instance's processes that run."""
        return tuple(one for one in self.owned.processes if one.is_alive)

    def links(self, pid: int) -> dict[int, str]:
        """What each file descriptor of process ``pid`` stands for."""
        if pid not in self._links:
            self._links[pid] = _links(pid)
        return self._links[pid]

    def held(self, pid: int) -> frozenset[Held]:
        """What process ``pid`` maps or has open in /dev/shm."""
        if pid not in self._held:
            self._held[pid] = frozenset(self._find_held(pid))
        return self._held[pid]

    def _find_held(self, pid: int) -> Iterator[Held]:
        prefix = f"{SHARED_MEMORY}/"
        paths = [(path, 0) for path in self.links(pid).values()]
        for path, inode in (*paths, *_mapped(pid)):
            name = path.removeprefix(prefix)
            # POSIX segments have no slash in their names; what has one is a file
            # of somebody who keeps files here, a compiled kernel say.
            if not path.startswith(prefix) or "/" in name:
                continue
            unlinked = name.endswith(_UNLINKED)
            # sem_open(3) makes a semaphore under a passing name and then links it
            # to its own: its maker maps it under the one that is gone.
            known = self._names.get(inode) if unlinked else None
            yield Held(known or name.removesuffix(_UNLINKED), unlinked and not known)

    @functools.cached_property
    def _names(self) -> dict[int, str]:
        """What is in /dev/shm, by its inode."""
        try:
            with os.scandir(SHARED_MEMORY) as entries:
                return {entry.inode(): entry.name for entry in entries}
        except OSError:
            return {}

    def memory_names(self) -> frozenset[str]:
        """All names in /dev/shm, anyone's; none where there is no such place."""
        return frozenset(self._names.values())


def _links(pid: int) -> dict[int, str]:
    folder = PROC / str(pid) / "fd"
    links: dict[int, str] = {}
    try:
        with os.scandir(folder) as entries:
            numbers = [entry.name for entry in entries]
    except OSError:
        return links
    for number in numbers:
        try:
            # A server has thousands, and Path.readlink() takes four times as long.
            target = os.readlink(f"{folder}/{number}")  # noqa: PTH115
        except OSError:  # closed since, like the one that the folder was read by
            continue
        links[int(number)] = target
    return links


def _mapped(pid: int) -> list[tuple[str, int]]:
    """What it maps of /dev/shm: paths and inodes."""
    try:
        maps = (PROC / str(pid) / "maps").read_bytes()
    except OSError:
        return []
    prefix = os.fsencode(f" {SHARED_MEMORY}/")
    if prefix not in maps:
        return []
    # proc_pid_maps(5): addresses, permissions, offset, device, inode, path.
    lines = (line.split(None, 5) for line in maps.splitlines() if prefix in line)
    return [(os.fsdecode(path), int(inode)) for *_, inode, path in lines]
