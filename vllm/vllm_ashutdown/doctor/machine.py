"""What the machine has for a server, and what dead ones have left on it."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

from ..core.reclaim import Reclaimed, Verdict
from .finding import Finding, Level

MIB, GIB = 1 << 20, 1 << 30

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (looked at, never written)
ENOUGH_MEMORY, LITTLE_MEMORY = GIB, 64 * MIB
"""Bytes free in /dev/shm: below the first it may get tight, below the second it is."""

ENOUGH_FILES = 4096
"""Descriptors: each stream takes one, and vLLM's own are hundreds."""

ENOUGH_PROCESSES = 512
"""Processes and threads: torch begins one for each core in each process."""

CGROUPS = Path("/sys/fs/cgroup")
CGROUP = Path("/proc/self/cgroup")


def machine(left: Reclaimed) -> Iterator[Finding]:
    """Looks at the system, its limits, and at what is ``left`` by the dead."""
    yield _system()
    yield _shared_memory()
    yield _files()
    yield from _processes()
    yield _leftovers(left)


def _system() -> Finding:
    system = platform.system()
    if system == "Linux":
        return Finding("system", Level.OK, f"Linux {platform.release()}")
    remedy = "Nothing ends the children of a server that is killed; stops are in order."
    return Finding("system", Level.WARNING, f"{system}: no lifelines", remedy)


def _shared_memory() -> Finding:
    topic = str(SHARED_MEMORY)
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError as error:
        return Finding(
            topic,
            Level.PROBLEM if platform.system() == "Linux" else Level.OK,
            f"not there: {error.strerror}",
            "vLLM's processes talk through it: mount a tmpfs there.",
        )
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    words = f"{_size(free)} free of {_size(size)}"
    if free >= ENOUGH_MEMORY:
        return Finding(topic, Level.OK, words)
    level = Level.PROBLEM if free < LITTLE_MEMORY else Level.WARNING
    remedy = "Give it more (docker run --shm-size, an emptyDir of medium Memory)"
    remedy += ", or see what fills it: vllm-ashutdown reclaim."
    return Finding(topic, level, words, remedy)


def _size(number: float) -> str:
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / MIB:.0f} MiB"


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = f"{_limit(soft)} open files, {_limit(hard)} at most"
    # vLLM raises its own limit as far as it may.
    if hard == resource.RLIM_INFINITY or hard >= ENOUGH_FILES:
        return Finding("descriptors", Level.OK, words)
    remedy = f"Raise the limit (ulimit -n, LimitNOFILE=) to {ENOUGH_FILES} or more."
    return Finding("descriptors", Level.WARNING, words, remedy)


def _processes() -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    room = [] if soft == resource.RLIM_INFINITY or os.getuid() == 0 else [soft]
    words = [f"{_limit(soft)} processes of this user"]
    limited = _pids()
    if limited is not None:
        most, now = limited
        room.append(most - now)
        words.append(f"{now} of {most} in this control group")
    short = any(left < ENOUGH_PROCESSES for left in room)
    remedy = f"A server needs some {ENOUGH_PROCESSES} (threads count): raise TasksMax="
    remedy += " or the container's pids limit."
    yield Finding(
        "processes",
        Level.WARNING if short else Level.OK,
        ", ".join(words),
        remedy if short else "",
    )


def _pids() -> tuple[int, int] | None:
    """How many processes and threads may be in this control group, and how many are."""
    try:
        lines = CGROUP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "pids"):
            continue
        folder = CGROUPS / controllers / path.lstrip("/")
        try:
            most = (folder / "pids.max").read_text(encoding="ascii").strip()
            now = (folder / "pids.current").read_text(encoding="ascii").strip()
        except OSError:
            continue
        if most.isdigit() and now.isdigit():
            return int(most), int(now)
    return None


def _limit(number: int) -> str:
    return "unlimited" if number == resource.RLIM_INFINITY else str(number)


def _leftovers(left: Reclaimed) -> Finding:
    topic, alive, total = "leftovers", len(left.alive), len(left.leftovers)
    if not total:
        words = "1 living instance" if alive == 1 else f"{alive} living instances"
        return Finding(topic, Level.OK, f"none of dead instances; {words}")
    refused = left.count(Verdict.REFUSED)
    words = f"{total} of dead instances"
    remedies = []
    if refused < total:
        remedies.append(
            "The next start takes them away, or: vllm-ashutdown reclaim --remove."
        )
    if refused:
        words += f", {refused} of them refused"
        remedies.append("What is refused stays. Why: vllm-ashutdown reclaim")
    return Finding(topic, Level.WARNING, words, " ".join(remedies))
