"""Ask, wait, then kill: how processes of ours are ended."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .handle import handles, ready
from .home import Home
from .member import Member
from .place import home

if TYPE_CHECKING:
    from ..core.report import ProcessEnd

logger = logging.getLogger("vllm.ashutdown")

REAP_SECONDS = 1.0
"""What the kernel may take to end a killed process: it has memory to take back."""

BEHIND_SECONDS = 0.2
"""For those that are told last, however late the others were: they only leave."""

LAST_WORDS_SECONDS = 0.2
"""For what a process has said before it left to be read; it lies in a socket."""


def end(
    processes: Sequence[Any],
    seconds: float,
    drain: float = 0.0,
    struck: Collection[int] = (),
    behind: Sequence[Any] = (),
) -> list[ProcessEnd]:
    """Ends ``processes``, all at once, and returns when they are gone. Blocks.

    Args:
        processes: Of ``multiprocessing``; those that are over are only told of.
        seconds: What they get to leave by themselves.
        drain: Of these, what their requests get.
        struck: The pids of those that :func:`strike` has killed, or does meanwhile.
        behind: What ``processes`` need until their last word. They are told when each
            of those is over or says that it leaves: the kernel takes the memory of all
            of them back at the same time then.

    Returns:
        How each ended, those behind last, and each process below it that it told of.
    """
    until = time.monotonic() + seconds
    running = [process for process in processes if process.exitcode is None]
    ask(running, seconds, drain)
    last, until_last = [one for one in behind if one.exitcode is None], until
    if last:
        staying_after(running, seconds)
        until_last = max(until, time.monotonic() + BEHIND_SECONDS)
        ask(last, until_last - time.monotonic())
    late = alive_after(running, until - time.monotonic())
    killed = kill(late, tell=seconds > 0).union(struck)
    killed |= kill(alive_after(last, until_last - time.monotonic()), tell=True)
    processes, running = [*processes, *behind], [*running, *last]
    for process in processes:
        killed |= outlived(process)
    # Also by another thread, if the stop was raised to kill meanwhile.
    killed |= {one.pid for one in running if one.exitcode == -signal.SIGKILL}
    return [one for process in processes for one in ends_of(process, killed)]


def ask(processes: Iterable[Any], seconds: float, drain: float = 0.0) -> None:
    """Tells each of ``processes`` to stop, and what it may take for that."""
    here = home()
    for process in processes:
        if here is not None:
            here.allow(process.pid, seconds=seconds, drain=drain)
        process.terminate()


def alive_after(processes: Iterable[Any], seconds: float) -> list[Any]:
    """Waits for all of ``processes``; those that still run after ``seconds``."""
    until = time.monotonic() + seconds
    with handles(processes) as running:
        while running:
            over = ready(running, until - time.monotonic())
            for handle in over:
                reap(running.pop(handle))
            if not over and time.monotonic() >= until:
                break
        return list(running.values())


def staying_after(processes: Iterable[Any], seconds: float) -> list[Any]:
    """Waits until each of ``processes`` is over or has said that it leaves.

    For a process that leaves too, and whose own parent waits for all of them: the
    kernel takes back the memory of both at the same time then.

    Returns:
        Those that have done neither after ``seconds``.
    """
    here = home()
    if here is None:
        return alive_after(processes, seconds)
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as opened:
        try:
            bell = opened.enter_context(here.bell())
        except OSError:  # no descriptors left
            return alive_after(processes, seconds)
        running = opened.enter_context(handles(processes))
        while True:
            for handle, process in list(running.items()):
                if leaving(process) is not None:
                    del running[handle]
            left = until - time.monotonic()
            if not running or left <= 0:
                return list(running.values())
            for handle in ready([bell, *running], left):
                if handle == bell:
                    os.eventfd_read(bell)
                else:
                    reap(running.pop(handle))


def leaving(process: Any) -> int | None:
    """The exit code with which ``process`` said that it leaves, if it has."""
    here = home()
    return None if here is None else here.record(process.pid).leaving


def reap(process: Any) -> None:
    """Takes the exit code of ``process``, which is over or as good as that."""
    # Joined, it would wait for whoever it has forked to close its sentinel as well.
    if process.exitcode is None:
        process.join(REAP_SECONDS)


def kill(processes: Sequence[Any], *, tell: bool = False) -> set[int]:
    """Kills ``processes`` and what they told of below them, and waits for the end.

    Args:
        processes: Of ``multiprocessing``.
        tell: Whether each is to write down first what its threads are at: nobody can
            ask them afterwards.

    Returns:
        The pids of those that were killed.
    """
    if not processes:
        return set()
    names = [f"{process.name} (pid {process.pid})" for process in processes]
    logger.warning("[shutdown] %s did not leave in time: SIGKILL", ", ".join(names))
    if tell:
        ask_where(processes)
    members = [one for process in processes for one in below(process)]
    killed = strike(processes)
    until = time.monotonic() + REAP_SECONDS
    alive_after(processes, REAP_SECONDS)
    for member in members:
        member.gone_within(until - time.monotonic())
    return killed


def ask_where(processes: Iterable[Any]) -> None:
    """Has each of ``processes`` write down what its threads are at. Waits a moment."""
    here = home()
    until = time.monotonic() + LAST_WORDS_SECONDS
    told = [here.ask_where(process.pid) for process in processes if here is not None]
    for one in told:
        if one is not None:
            one.wait(max(0.0, until - time.monotonic()))


def strike(processes: Iterable[Any], killed: set[int] | None = None) -> set[int]:
    """Kills like :func:`kill`, and does not wait for anything.

    Nothing else: a program that someone has begun from there is not ours.

    Args:
        processes: Of ``multiprocessing``.
        killed: Where to note the pids; another thread may see the end at once.
    """
    killed = set() if killed is None else killed
    for process in processes:
        if process.exitcode is None:
            # Its handle pins the identity: a pid is not reused before it is reaped.
            killed.add(process.pid)
            process.kill()
        killed |= {one.pid for one in below(process) if kill_member(one)}
    return killed


def outlived(process: Any) -> set[int]:
    """Sees to it that nothing below ``process``, which is over, outlives it.

    The kernel ends them with it, which takes a moment: they have memory to give back.

    Returns:
        The pids of those that had to be killed.
    """
    killed = set()
    for member in below(process) if process.exitcode is not None else ():
        if not member.gone_within(REAP_SECONDS) and kill_member(member):
            killed.add(member.pid)
            member.gone_within(REAP_SECONDS)
    return killed


def kill_member(member: Member) -> bool:
    """Kills exactly this process, never a later one of the same pid."""
    try:
        handle = os.pidfd_open(member.pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):  # no handles here, or no descriptors left
        return _kill_by_pid(member)
    try:
        if not member.alive:  # looked at with the pid held fast
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _kill_by_pid(member: Member) -> bool:
    try:
        if member.alive:
            os.kill(member.pid, signal.SIGKILL)
            return True
    except OSError:
        return False
    return False


def below(process: Any) -> list[Member]:
    """The processes that ``process`` told of as its own."""
    here = home()
    return [] if here is None else list(here.record(process.pid).below.values())


def ends_of(process: Any, killed: set[int]) -> list[ProcessEnd]:
    """How ``process`` ended, and how those below it did."""
    # Whoever has children that have children has it already; a core, a worker does not.
    from ..core.report import ProcessEnd

    ends = [
        ProcessEnd(process.name, process.pid, process.exitcode, process.pid in killed)
    ]
    here = home()
    if here is None:
        return ends
    record = here.record(process.pid)
    if record.member is not None and process.exitcode is not None:
        record.gone.wait(LAST_WORDS_SECONDS)
    told = {}
    for words in record.ended:
        one = ProcessEnd(**words["end"])
        told[one.pid] = one
    for member in list(record.below.values()):
        if member.pid in killed:
            ends.append(ProcessEnd(member.name, member.pid, -signal.SIGKILL, True))
        elif member.pid in told:
            ends.append(told[member.pid])
        elif process.exitcode != 0 or member.alive:
            # Its parent was gone before it could tell, and took it along.
            code = None if member.alive else -signal.SIGKILL
            ends.append(ProcessEnd(member.name, member.pid, code, killed=True))
    return [_timed(one, here) for one in ends]


def _timed(one: ProcessEnd, here: Home) -> ProcessEnd:
    """``one`` with the time of its end; at the latest now, if it is only being told."""
    if one.exitcode is None:
        return one
    return one.over_at(here.ended(one.pid) or time.monotonic())
