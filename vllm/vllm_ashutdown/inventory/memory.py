"""What POSIX keeps in /dev/shm: shared memory segments and named semaphores.

A name there outlives whoever made it, and memory outlives its name for as long as
someone maps it. Both are looked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from . import view as views
from .probe import Probe
from .view import View

_SEMAPHORE = "sem."
"""What sem_open(3) puts before the name of a semaphore, to make a file's of it."""


def _shared_memory(view: View) -> frozenset[str]:
    return _look(view, view.owned.memory, "")


def _semaphores(view: View) -> frozenset[str]:
    return _look(view, view.owned.semaphores, _SEMAPHORE)


def _look(view: View, recorded: Iterable[str], prefix: str) -> frozenset[str]:
    """Those of one kind that are there, under the names that POSIX has for them."""

    def held_by(pid: int, *, unlinked: bool) -> set[str]:
        return {
            one.name.removeprefix(prefix)
            for one in view.held(pid)
            if one.unlinked is unlinked
            and one.name not in view.owned.baseline.memory
            and one.name.startswith(_SEMAPHORE) is bool(prefix)
        }

    names = {name.removeprefix("/") for name in recorded}
    for process in view.living:
        names |= held_by(process.pid, unlinked=False)
    there = {
        name
        for name in names
        if os.path.lexists(views.SHARED_MEMORY / f"{prefix}{name}")
    }
    nameless = {
        f"{name} (unlinked, held by pid {process.pid})"
        for process in view.living
        for name in held_by(process.pid, unlinked=True)
    }
    if names > there:  # the host shares this process: only what is known to be ours
        here = os.getpid()
        lost = (names - there) & held_by(here, unlinked=True)
        nameless |= {f"{name} (unlinked, held by pid {here})" for name in lost}
    return frozenset(there | nameless)


MEMORY = Probe(
    row="shared memory",
    what="message queues, tensor-parallel buffers, the multimodal cache",
    noun="shared memory",
    state="is there",
    look=_shared_memory,
)
SEMAPHORES = Probe(
    row="semaphores",
    what="named semaphores of locks, events and queues between processes",
    noun="semaphore",
    state="is there",
    look=_semaphores,
)
