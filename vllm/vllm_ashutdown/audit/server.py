"""One real server as a child process, from its start to its end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from .. import settings
from .address import Address
from .family import MARK, Family
from .plan import START_SECONDS
from .stages import Stage, Stages, ignore

KEPT_LINES = 400
READY_SECONDS = 0.1
"""From one knock at its door to the next, while it starts."""

GRACE_SECONDS = 15.0
"""What a server gets to stop in order when whoever looks at it is interrupted."""


class ServerFailedError(Exception):
    """Raised when a server has ended, or said nothing for too long, unasked.

    Attributes:
        lines: The end of its log.
    """

    def __init__(self, message: str, lines: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.lines = tuple(lines)


class Server:
    """A server in a session and a directory of its own.

    Both make it possible to see from outside what it leaves.

    Attributes:
        address: Where it serves.
        directory: Its place for temporary files.
        family: Its processes.
        lines: The last lines of its log.
        exit_code: Its exit code, negative for a signal, once it has ended.
        ended: Set then.
        ended_at: When that was, by the monotonic clock.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        address: Address,
        family: Family,
        *,
        environment: Mapping[str, str] | None = None,
        stage: Stage = ignore,
    ) -> None:
        """Starts it and returns at once.

        Args:
            command: The program and its arguments.
            directory: Exists and is empty; ends up holding what it leaves.
            address: Where it will answer.
            family: Of nobody yet.
            environment: On top of the caller's.
            stage: Called, on another thread, with each stage of the start.

        Raises:
            ServerFailedError: there is no such program.
        """
        self.address = address
        self.directory = directory
        self.family = family
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.exit_code: int | None = None
        self.ended = threading.Event()
        self.ended_at = 0.0
        self._report = directory.with_name(directory.name + ".report.json")
        self._stage = stage
        self._asked = False
        self.started_at = time.monotonic()
        try:
            self._process = subprocess.Popen(
                command,
                env=self._environment(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            lost = isinstance(error, FileNotFoundError)
            advice = "; give its path, or activate its environment" if lost else ""
            raise ServerFailedError(
                f"{command[0]}: {error.strerror}{advice}"
            ) from error
        family.top = self.pid
        self._threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._follow, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """Its process id, which is its session's and its group's too."""
        return self._process.pid

    @property
    def report_text(self) -> str | None:
        """What it wrote about its stop, if it did."""
        try:
            return self._report.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Returns when it serves.

        Raises:
            ServerFailedError: it will not.
        """
        deadline = time.monotonic() + seconds
        while not self.ended.wait(READY_SECONDS):
            if self._is_healthy():
                return
            if time.monotonic() > deadline:
                raise self.failed(f"not ready after {seconds:.0f} s")
        raise self.failed(f"it ended with exit code {self.exit_code}")

    def stay_for(self, seconds: float) -> None:
        """Returns after so many seconds.

        Raises:
            ServerFailedError: it ended meanwhile.
        """
        if self.ended.wait(seconds):
            code = self.exit_code
            raise self.failed(f"it ended with exit code {code}, and nobody had asked")

    def failed(self, message: str) -> ServerFailedError:
        """The error that says so, with its log."""
        return ServerFailedError(message, self.lines)

    def send(self, number: signal.Signals, *, group: bool = False) -> float:
        """Sends a signal to its top process, or to its whole group.

        Returns:
            When, by the monotonic clock.
        """
        self._asked = True
        at = time.monotonic()
        # Both mean this server alone: it is reaped only when all is over.
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)
        return at

    def remove(self) -> None:
        """Ends it and all that is left of it: in order, if nobody has asked it yet."""
        self._stage = ignore  # a start that goes on is of no interest any more
        if not (self._asked or self.ended.is_set()):
            self.send(signal.SIGTERM)
            self.ended.wait(GRACE_SECONDS)
        self.family.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        for thread in self._threads:
            thread.join(GRACE_SECONDS)

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        place = str(self.directory)
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name != settings.STATE_DIRECTORY.name  # that is others' too
        }
        return {
            # The stages are read off the log.
            "VLLM_LOGGING_LEVEL": "INFO",
            **inherited,
            **more,
            settings.REPORT.name: str(self._report),
            MARK: self.family.mark,
            # Whatever lies there afterwards is this server's.
            "TMPDIR": place,
            "VLLM_RPC_BASE_PATH": place,
            "PYTHONUNBUFFERED": "1",
        }

    def _follow(self) -> None:
        assert self._process.stdout is not None
        stages = Stages(self._tell)
        with self._process.stdout as log:
            for line in log:
                self.lines.append(line.rstrip())
                stages.see(line)

    def _tell(self, words: str) -> None:
        self._stage(words)

    def _watch(self) -> None:
        # Blocking, in a thread: a wait with a time limit polls, and would measure
        # its own steps. And without taking its exit code from the kernel: that gives
        # its pid away, by which its processes and its group are known.
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        left = found.si_code == os.CLD_EXITED
        self.exit_code = found.si_status if left else -found.si_status
        self.ended_at = time.monotonic()
        self.ended.set()

    def _is_healthy(self) -> bool:
        import httpx

        with self.address.client() as client:
            try:
                return client.get("/health", timeout=5).status_code == 200
            except httpx.HTTPError:
                return False


@contextlib.contextmanager
def running(begin: Callable[[], Server]) -> Iterator[Server]:
    """Begins a server and gives it; nothing of it stays, whatever comes.

    What Ctrl-C raises, it raises on the main thread, at any place: also where the
    process has begun and nobody has a name for it yet. So another thread begins it.

    Raises:
        ServerFailedError: there is no such program.
    """
    begun: list[Server] = []
    failed: list[ServerFailedError] = []
    done = threading.Event()

    def work() -> None:
        try:
            begun.append(begin())
        except ServerFailedError as error:
            failed.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=work)
    try:
        thread.start()
        # Not join(): interrupted, it takes the thread for one that has ended.
        done.wait()
        for error in failed:
            raise error
        yield begun[0]
    finally:
        if thread.ident is not None:
            done.wait()
        for server in begun:
            server.remove()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
