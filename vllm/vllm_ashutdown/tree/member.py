"""One process of the tree, told apart from any other that has its pid later."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from .handle import ready

_THREADS_FIELD, _START_FIELD = 17, 19
"""Of /proc/PID/stat, counted from behind the name, which may hold anything."""


class Member(Struct, frozen=True):
    """A process and who it is.

    Attributes:
        pid: Its process id.
        start: The kernel's start time of it in clock ticks; 0 where there is none to
            be had. With the pid it names one process and no other.
        name: ``multiprocessing``'s name for it.
    """

    pid: int
    start: int
    name: str

    @classmethod
    def of(cls, pid: int, name: str) -> Member:
        """The process that has ``pid`` now."""
        return cls(pid, start_of(pid), name)

    @classmethod
    def here(cls, name: str) -> Member:
        """This process."""
        return cls.of(os.getpid(), name)

    @classmethod
    def parse(cls, value: Any) -> Member:
        """The member that :meth:`plain` wrote.

        Raises:
            ValueError: ``value`` is none.
        """
        try:
            return cls(int(value["pid"]), int(value["start"]), str(value["name"]))
        except (KeyError, OverflowError, TypeError) as error:
            raise ValueError(f"not a process: {value!r}") from error

    def plain(self) -> dict[str, Any]:
        """For a message."""
        return structs.asdict(self)

    @property
    def alive(self) -> bool:
        """Whether it runs. A zombie does not: all that it had is given back."""
        found = stat_of(self.pid)
        return found is not None and found[0] not in "ZX" and found[1] == self.start

    def gone_within(self, seconds: float) -> bool:
        """Whether it is over within ``seconds``; waits for that in the kernel."""
        if not hasattr(os, "pidfd_open"):
            return not self.alive
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        except OSError:  # no descriptors left, or a sandbox that knows no handles
            return not self.alive
        try:
            if not self.alive:  # looked at with the pid held fast
                return True
            return bool(ready([handle], seconds))
        finally:
            os.close(handle)

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def start_of(pid: int) -> int:
    """The start time of ``pid``; 0 if there is no such process, or no /proc."""
    found = stat_of(pid)
    return 0 if found is None else found[1]


def stat_of(pid: int) -> tuple[str, int] | None:
    """State and start time of ``pid``; ``None`` if there is no such process.

    Its main thread may be a zombie before the others are over, which still hold all
    that the process has: that is not its state.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    state = "R" if fields[0] in "ZX" and int(fields[_THREADS_FIELD]) > 1 else fields[0]
    return state, int(fields[_START_FIELD])
