"""The processes of one server, wherever they have gone, and nobody else's.

A process is the server's if it is in its session, descends from it, or carries the mark
that the server was started with in its environment. One of the three holds for a
process that has made itself a daemon, for one that has given itself a title (which
takes the place of the environment) and for one that was born a moment ago.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from ..inventory import Process, family

MARK = "ASHUTDOWN_AUDIT"
"""The environment variable with a secret word, which every process of it inherits."""

PROC = Path("/proc")
ROUNDS = 5


class Family:
    """Whoever belongs to one server.

    The pid of its top process must not be given away before the last look: whoever
    waits for it leaves it a zombie until then.

    Attributes:
        mark: What to put into the server's environment under :data:`MARK`.
        top: The pid of its first process, which leads a session; 0 before there is one.
    """

    def __init__(self) -> None:
        self.mark = secrets.token_hex(16)
        self.top = 0
        self._seen: dict[tuple[int, float], Process] = {}

    @property
    def seen(self) -> tuple[Process, ...]:
        """All that were found in any look."""
        return tuple(self._seen.values())

    def living(self) -> tuple[Process, ...]:
        """Those that live now, the oldest first."""
        for pid in set(self._pids()):
            process = Process.of(pid)
            if process is not None:
                # vLLM's children rename themselves; the last name says most.
                self._seen[process.pid, process.start] = process
        alive = [one for one in self._seen.values() if one.is_alive]
        return tuple(sorted(alive, key=lambda one: (one.start, one.pid)))

    def _pids(self) -> Iterator[int]:
        if not self.top:
            return
        for one in family(self.top):
            yield one.pid
        word = f"{MARK}={self.mark}".encode()
        for pid in psutil.pids():
            with contextlib.suppress(OSError):  # it has gone, or is another user's
                if os.getsid(pid) == self.top or word in _environment(pid):
                    yield pid

    def gone_within(self, seconds: float) -> float:
        """Waits until none lives any more.

        Returns:
            When that was, or when the time was up, on :func:`time.monotonic`.
        """
        until = time.monotonic() + seconds
        while (alive := self.living()) and time.monotonic() < until:
            _wait_for_one(alive, until - time.monotonic())
        return time.monotonic()

    def kill(self) -> None:
        """Kills whoever is left."""
        for _ in range(ROUNDS):
            # Oldest first, so that few can still be made; hence the rounds.
            alive = self.living()
            for one in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    handle = psutil.Process(one.pid)  # it looks at the start time too
                    if one.is_alive:
                        handle.kill()
            if not alive:
                return
            self.gone_within(2.0)


def _environment(pid: int) -> bytes:
    if not PROC.is_dir():
        return b""
    return (PROC / str(pid) / "environ").read_bytes()


def _wait_for_one(processes: tuple[Process, ...], seconds: float) -> None:
    """Returns when one of them is over, or after so many seconds."""
    poll = select.poll()
    with contextlib.ExitStack() as opened:
        for process in processes:
            try:
                handle = os.pidfd_open(process.pid)
            except ProcessLookupError:
                return
            opened.callback(os.close, handle)
            poll.register(handle, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)
