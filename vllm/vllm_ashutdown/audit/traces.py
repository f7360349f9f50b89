"""What a server leaves behind, measured from outside and without its help."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from ..inventory import Look, Owned, Process, look
from ..inventory.device import DEVICE_MEMORY
from ..inventory.memory import MEMORY, SEMAPHORES
from ..inventory.processes import PROCESSES
from ..inventory.sockets import LISTENING
from .address import Address
from .family import PROC, Family

DRIVER = Path("/dev/nvidiactl")
"""Where it is not, there is no GPU to be asked; to be able to ask takes seconds."""

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at

ROWS = (PROCESSES, MEMORY, SEMAPHORES, LISTENING, DEVICE_MEMORY)
"""What can be asked of someone else's processes."""

SOCKET_FILES, FILES, ADDRESS = "socket files", "temporary files", "address"

Entry = tuple[str, int]
"""A name in /dev/shm and its inode."""

_SEMAPHORE = "sem."

# torch's cache of compiled code, which is meant to stay.
_CACHES = "torchinductor_"

Items = dict[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of resource, as it was seen from outside.

    Attributes:
        name: The kind.
        before: What was there before the server.
        during: What it had when it was about to be stopped.
        after: What is left of it.
    """

    name: str
    before: tuple[str, ...]
    during: tuple[str, ...]
    after: tuple[str, ...]


class Traces:
    """Looks at one server before, while and after it runs."""

    def __init__(self, family: Family, directory: Path, address: Address) -> None:
        """Notes what is there before the server starts.

        Args:
            family: Its processes.
            directory: Its place for temporary files, which nobody else uses.
            address: Where it will answer.
        """
        self._family = family
        self._directory = directory
        self._address = address
        self._shared_before = _shared_memory()
        self._foreign: set[int] = set()
        self._own: set[int] = set()
        self._known: Look | None = None
        if DRIVER.exists() and (here := Process.of(os.getpid())):
            # What is imported for it is there by the time that counts.
            look(Owned(processes=(here,), ask_devices=True), probes=(DEVICE_MEMORY,))
        self._before = self._look()
        self._during: Items = {}

    @property
    def in_the_way(self) -> tuple[str, ...]:
        """What keeps a server from its address before it has begun."""
        return tuple(self._before[ADDRESS])

    def look(self) -> None:
        """Notes who and what is the server's now, and what is others'."""
        self._during = self._look()

    def rows(self) -> tuple[Row, ...]:
        """Before, during and now, for each kind."""
        after = self._look()
        return tuple(
            Row(
                name,
                *(
                    tuple(sorted(items.get(name, ())))
                    for items in (self._before, self._during, after)
                ),
            )
            for name in after
        )

    def take_away(self) -> None:
        """Removes what its processes had in shared memory, once all of them are gone.

        Only what one of them was seen to have mapped: another program's segments may
        have come meanwhile.
        """
        in_use = {inode for inodes in _mapped().values() for inode in inodes}
        for name, inode in _shared_memory() - self._shared_before:
            if inode in self._own - in_use:
                with contextlib.suppress(FileNotFoundError):
                    (SHARED_MEMORY / name).unlink()

    def _look(self) -> Items:
        # Another program's segments may come at any time: list first, so that none
        # can come between the list and the look at whose they are. The same goes for
        # processes: ours are asked for before and after, so that none of them is taken
        # for a stranger that was born or has gone meanwhile.
        new = _shared_memory() - self._shared_before
        self._family.living()
        mapped = _mapped()
        processes = self._family.living()
        ours = {one.pid for one in self._family.seen}
        for pid, inodes in mapped.items():
            if pid in ours:
                self._own |= inodes
            else:
                self._foreign |= inodes
        unclaimed = {name for name, inode in new if inode not in self._foreign}
        owned = Owned(processes=processes, ask_devices=DRIVER.exists())
        # What was seen in use has a name that can outlive its user.
        found = look(owned, self._known, ROWS)
        if processes:
            self._known = found
        items = {row: frozenset(seen) for row, seen in found.items.items()}
        semaphores = {name for name in unclaimed if name.startswith(_SEMAPHORE)}
        items[MEMORY.row] |= unclaimed - semaphores
        items[SEMAPHORES.row] |= {name.removeprefix(_SEMAPHORE) for name in semaphores}
        sockets, files = _files(self._directory)
        items[SOCKET_FILES], items[FILES] = frozenset(sockets), frozenset(files)
        in_use = _in_use(self._address)
        items[ADDRESS] = frozenset((in_use,) if in_use else ())
        return items


def _shared_memory() -> set[Entry]:
    if not SHARED_MEMORY.is_dir():
        return set()
    with os.scandir(SHARED_MEMORY) as entries:
        return {(entry.name, entry.inode()) for entry in entries}


def _mapped() -> dict[int, set[int]]:
    """For each process, the inodes in /dev/shm that it has mapped.

    Not names: glibc makes a semaphore under another one and then links it, so its
    maker maps a name that is deleted.
    """
    found = {}
    for maps in PROC.glob("[0-9]*/maps"):
        try:
            lines = maps.read_text(errors="replace").splitlines()
        except OSError:  # it has gone, or is another user's
            continue
        # address, permissions, offset, device, inode, path
        found[int(maps.parent.name)] = {
            int(line.split(maxsplit=5)[4])
            for line in lines
            if f" {SHARED_MEMORY}/" in line
        }
    return found


def _files(directory: Path) -> tuple[list[str], list[str]]:
    sockets, files = [], []
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if name.startswith(_CACHES):
            continue
        if path.is_socket():
            sockets.append(name)
        elif not path.is_dir() or not any(path.iterdir()):
            files.append(name)
    return sockets, files


def _in_use(address: Address) -> str:
    """What is at ``address``, and would keep the next server from it."""
    if address.uds:
        return f"{address.uds} is there" if os.path.lexists(address.uds) else ""
    try:
        where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[
            0
        ]
    except OSError as error:
        return f"{address.host} is no address here: {error}"
    family, kind, protocol, _, sockaddr = where
    with socket.socket(family, kind, protocol) as probe:
        answer = probe.connect_ex(sockaddr)
    if answer == 0:
        return f"{address} answers"
    if answer != errno.ECONNREFUSED:
        return f"{address}: {os.strerror(answer)}"
    with socket.socket(family, kind, protocol) as probe:
        # As every server does: connections that are over may still be remembered.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(sockaddr)
        except OSError as error:
            return f"{address} cannot be bound: {error.strerror}"
    return ""
