"""A drain longer than the supervisor's time asks for more, and gets it. And without?

The supervisor is systemd in small: SIGTERM, a clock, SIGKILL when that is out.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.programs import PRELUDE, ROOT
from vllm_ashutdown.telling.notify import VARIABLE

SERVER = """
import asyncio
from vllm_ashutdown.core.budget import Budget
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Phase
from vllm_ashutdown.core.stop import Stop
from vllm_ashutdown.core.trigger import Trigger
from vllm_ashutdown.telling.notify import tell_manager

async def main():
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, asked.set)
    tell("serves")
    await asked.wait()
    stop = Stop(Mode.DRAIN, Budget.arm(60, 10), Trigger.signal(signal.SIGTERM))
    tell_manager(stop)
    async def drained():
        await loop.run_in_executor(None, sys.stdin.readline)  # the last stream's end
    await stop.step(Phase.DRAIN, drained)
    stop.finish()
    tell("drain", stop.records[0].outcome)

asyncio.run(main())
"""


class Supervisor:
    """Of one server, which drains until it is told that its last stream is over.

    Args:
        folder: For its socket.
        seconds: Its own for a stop. The drain takes longer.
        listens: Whether it gives the time that it is asked for.
    """

    def __init__(self, folder: Path, seconds: float, *, listens: bool) -> None:
        self.seconds, self.listens = seconds, listens
        self.path = folder / "notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.server = subprocess.Popen(
            [sys.executable, "-c", PRELUDE.format(plugin=False) + SERVER],
            env=os.environ
            | {"PYTHONPATH": str(ROOT / "vllm"), VARIABLE: str(self.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == "serves\n"

    def stop(self) -> tuple[int, str]:
        """Stops it as systemd does.

        Where its own time is out and it has given more, the last stream ends.

        Returns:
            The exit code, and what the server said.
        """
        handle = os.pidfd_open(self.server.pid)
        own = deadline = time.monotonic() + self.seconds
        self.server.terminate()
        while True:
            now = time.monotonic()
            until = own if now < own else deadline
            left = max(0.0, until - now)
            ready, _, _ = select.select([handle, self.socket], [], [], left)
            if self.socket in ready:
                deadline = max(deadline, self._extended())
            if handle in ready:
                break
            if time.monotonic() >= deadline:
                self.server.kill()
                break
            if time.monotonic() >= own and not self.server.stdin.closed:
                self.server.stdin.write("\n")
                self.server.stdin.close()
                own = deadline
        os.close(handle)
        said = self.server.stdout.read()
        return self.server.wait(10), said

    def _extended(self) -> float:
        """The deadline that a message asks for; long ago if it asks for none."""
        for line in self.socket.recv(4096).decode().split("\n"):
            key, _, value = line.partition("=")
            if self.listens and key == "EXTEND_TIMEOUT_USEC":
                return time.monotonic() + int(value) / 1e6
        return 0.0

    def close(self) -> None:
        """Leaves nothing behind."""
        self.server.kill()
        with self.server:
            self.socket.close()


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervisor]]:
    made: list[Supervisor] = []

    def supervise(seconds: float, *, listens: bool) -> Supervisor:
        made.append(Supervisor(tmp_path, seconds, listens=listens))
        return made[-1]

    yield supervise
    for one in made:
        one.close()


def test_a_drain_that_is_longer_than_its_time_gets_more(supervise):
    # Long enough for a busy machine to ask within.
    assert supervise(2.0, listens=True).stop() == (0, "drain done\n")


def test_a_supervisor_that_does_not_listen_kills_it(supervise):
    assert supervise(0.2, listens=False).stop() == (-signal.SIGKILL, "")
