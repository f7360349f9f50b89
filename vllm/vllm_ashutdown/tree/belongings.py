"""What belongs to an instance: its processes, and what each told that it has made."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import structs

from ..core.files import Kind, release, without_dead_tracker
from ..inventory import PROBES, Owned
from ..inventory import Process as Seen
from .ending import LAST_WORDS_SECONDS, below
from .place import home

logger = logging.getLogger("vllm.ashutdown")

_THE_HOSTS = ("threads", "process groups")
"""Rows that are shown and not judged: a program has its own, and other engines."""

_TOO_MANY = ("descriptors",)
"""A server has one for each client: that is for those who look for growth."""

ROWS = tuple(
    structs.replace(probe, must_go=probe.must_go and probe.row not in _THE_HOSTS)
    for probe in PROBES
    if probe.row not in _TOO_MANY
)
"""The inventory of an instance whose work is done in processes of its own."""

_FILES = (Kind.FILE, Kind.STORE, Kind.DIRECTORY)


def made_by(processes: Iterable[Any]) -> dict[str, str]:
    """Path and kind of all that ``processes``, and those below them, told of."""
    here = home()
    made: dict[str, str] = {}
    for process in processes:
        if here is not None:
            made |= here.record(process.pid).made
    return made


def owned_by(processes: Sequence[Any], made: dict[str, str], **more: Any) -> Owned:
    """What an inventory shall look for.

    Args:
        processes: Of ``multiprocessing``, begun by this process.
        made: Path and kind of what belongs to them, and to this process for them.
        more: Other attributes of :class:`~vllm_ashutdown.inventory.Owned`.
    """
    members = [(process.pid, process.name) for process in processes]
    members += [(one.pid, one.name) for process in processes for one in below(process)]
    seen = [Seen.of(pid, name) for pid, name in members if pid is not None]
    return Owned(
        processes=tuple(one for one in seen if one is not None),
        memory=_names(made, Kind.SHARED_MEMORY),
        semaphores=_names(made, Kind.SEMAPHORE),
        ipc=_paths(made, Kind.IPC_SOCKET),
        files=_paths(made, *_FILES),
        uds=_paths(made, Kind.SOCKET_FILE),
        spared=_own_threads(),
        **more,
    )


def release_for(processes: Sequence[Any]) -> None:
    """Releases what ``processes``, all of them gone, have left behind.

    One that left in order has left nothing; one that was killed could not tidy up.
    """
    if any(process.exitcode is None for process in processes):
        return
    if any(process.exitcode for process in processes):
        _hear_last_words(processes)
    for path, kind in made_by(processes).items():
        try:
            with without_dead_tracker():
                release(kind, path)
        except OSError as error:
            logger.warning("[shutdown] %s %s stays: %s", kind, path, error)


def _hear_last_words(processes: Sequence[Any]) -> None:
    """Waits until all is read that they have said of what they made; a moment at most.

    One that leaves by itself is slower than its words are read.
    """
    here = home()
    if here is None:
        return
    until = time.monotonic() + LAST_WORDS_SECONDS
    for process in processes:
        record = here.record(process.pid)
        if record.member is not None:
            record.gone.wait(max(0.0, until - time.monotonic()))
    here.door.caught_up(until - time.monotonic())


def _own_threads() -> frozenset[int]:
    """Those that serve every instance of this process, and outlive each."""
    here = home()
    thread = None if here is None else here.door.thread
    return frozenset([thread.native_id] if thread and thread.native_id else [])


def _paths(made: dict[str, str], *kinds: str) -> frozenset[str]:
    return frozenset(path for path, kind in made.items() if kind in kinds)


def _names(made: dict[str, str], kind: str) -> frozenset[str]:
    return frozenset(path.rpartition("/")[2] for path in _paths(made, kind))
