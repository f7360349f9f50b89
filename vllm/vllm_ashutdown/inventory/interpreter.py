"""What lives in this interpreter: threads, tasks, objects, descriptors, groups.

The host program has all of these too. Its own are told from the instance's by where
their code stands, and by what was there before.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from typing import Any

from .groups import initialised_groups
from .probe import Probe
from .view import View

_THREAD_HOMES = ("vllm", "vllm_ashutdown")
_THREAD_NAMES = ("vllm", "VLLM")


def _threads(view: View) -> frozenset[str]:
    owned = view.owned
    spared = owned.baseline.threads | owned.spared | {threading.get_native_id()}
    return frozenset(
        f"{thread.name} ({'daemon, ' if thread.daemon else ''}id {thread.native_id})"
        for thread in threading.enumerate()
        if thread.native_id not in spared
        and (thread.native_id in owned.threads or _is_vllms(thread))
    )


def _is_vllms(thread: threading.Thread) -> bool:
    if thread.name.startswith(_THREAD_NAMES):
        return True
    # Most of vLLM's threads have the name that Python makes up. Without the target,
    # which is private, a thread is known by its class alone.
    target: Any = getattr(thread, "_target", None)
    while isinstance(target, functools.partial):
        target = target.func
    modules = (type(thread).__module__, getattr(target, "__module__", None))
    return any(_is_at_home(module, _THREAD_HOMES) for module in modules)


def _is_at_home(module: str | None, homes: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{home}.") for home in homes)


def _tasks(view: View) -> frozenset[str]:
    loop, homes = view.owned.loop, view.owned.homes
    if loop is None:
        return frozenset()
    items = set()
    for task in asyncio.all_tasks(loop):
        coroutine: Any = task.get_coro()
        frame = getattr(coroutine, "cr_frame", None)  # not in a compiled coroutine
        if frame and _is_at_home(frame.f_globals.get("__name__"), homes):
            items.add(f"{coroutine.__qualname__} ({task.get_name()})")
    return frozenset(items)


def _references(view: View) -> frozenset[str]:
    references = view.owned.references
    return frozenset(name for name, reference in references if reference() is not None)


def _descriptors(view: View) -> frozenset[str]:
    links = view.links(os.getpid())
    return frozenset(f"{number} -> {target}" for number, target in links.items())


def _groups(view: View) -> frozenset[str]:
    return initialised_groups() - view.owned.baseline.groups


GROUPS = Probe(
    row="process groups",
    what="torch.distributed in this process",
    noun="process group",
    state="is initialised",
    look=_groups,
)
THREADS = Probe(
    row="threads",
    what="threads of vLLM and of the stop in this process, daemons or not",
    noun="thread",
    state="is alive",
    look=_threads,
)
TASKS = Probe(
    row="tasks",
    what="asyncio tasks on the engine's loop that run vLLM's coroutines",
    noun="task",
    state="is pending",
    look=_tasks,
)
REFERENCES = Probe(
    row="references",
    what="objects that must be collected: the engine, what app.state holds",
    noun="object",
    state="is still referenced",
    look=_references,
)
DESCRIPTORS = Probe(
    row="descriptors",
    what="open file descriptors of this process, the host's too",
    noun="descriptor",
    state="is open",
    look=_descriptors,
    must_go=False,
)
