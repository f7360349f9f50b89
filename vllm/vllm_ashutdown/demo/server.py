"""One real vLLM server as a child process, from its start to its end."""

from __future__ import annotations

import contextlib
import http.client
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import psutil

from .checkpoint import MODEL_NAME
from .traces import members

START_SECONDS = 600.0
"""No start takes longer, on however slow a machine."""

KEPT_LINES = 400
KILL_ROUNDS = 5

GRACE_SECONDS = 15.0
"""What a server gets to stop in order when the demonstration is interrupted."""

# What vLLM logs as a stage begins, and that stage in words. In their order: a stage
# that is over does not come back when another process logs its words again.
STAGES = (
    ("", "loading Python and vLLM"),
    ("non-default args", "reading the configuration"),
    ("Resolved architecture", "starting the engine core"),
    ("Initializing a V1 LLM engine", "starting the worker"),
    ("Starting to load model", "loading the weights"),
    ("Loading weights took", "laying out the KV cache"),
    ("KV cache size", "warming the model up"),
    ("Supported tasks", "opening the API"),
    ("Application startup complete", "ready"),
)


class ServerFailedError(Exception):
    """The server ended, or said nothing for too long, before it served."""


class Server:
    """A server in a session and a directory of its own.

    Both make it possible to see from outside what it leaves.

    Attributes:
        port: Where it serves, on 127.0.0.1.
        directory: Its place for temporary files.
        lines: The last lines of its log.
        exit_code: Its exit code, once it has ended.
        ended_at: When that was, by the monotonic clock.
    """

    def __init__(
        self,
        model: Path,
        directory: Path,
        shutdown_timeout: int,
        stage: Callable[[str], None],
    ) -> None:
        """Starts it and returns at once.

        Args:
            model: The checkpoint.
            directory: Exists and is empty; ends up holding what it leaves.
            shutdown_timeout: vLLM's option of this name.
            stage: Called, on another thread, with each stage of the start.
        """
        self.port = free_port()
        self.directory = directory
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.exit_code: int | None = None
        self.ended_at = 0.0
        self._ended_wall = math.inf
        self._ended = threading.Event()
        self._report = directory.with_name(directory.name + ".report.json")
        self._stage = stage
        arguments = {
            "--host": "127.0.0.1",
            "--port": str(self.port),
            "--served-model-name": MODEL_NAME,
            "--shutdown-timeout": str(shutdown_timeout),
        }
        command = [sys.executable, "-m", "vllm_ashutdown.cli", "serve", str(model)]
        command += ["--enforce-eager"]
        for name, value in arguments.items():
            command += [name, value]
        self.process = subprocess.Popen(
            command,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
        for work in (self._follow, self._reap):
            threading.Thread(target=work, daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id, which is its session's id too."""
        return self.process.pid

    @property
    def report_text(self) -> str | None:
        """What it wrote about its stop, if it did."""
        try:
            return self._report.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def wait_ready(self) -> None:
        """Returns when it serves.

        Raises:
            ServerFailedError: it will not.
        """
        deadline = time.monotonic() + START_SECONDS
        while not self._ended.wait(0.2):
            if self._is_healthy():
                return
            if time.monotonic() > deadline:
                raise ServerFailedError(f"not ready after {START_SECONDS:.0f} s")
        raise ServerFailedError(f"it ended with exit code {self.exit_code}")

    def send(self, number: signal.Signals) -> float:
        """Sends a signal to its top process alone; returns when, monotonic."""
        at = time.monotonic()
        self.process.send_signal(number)
        return at

    def wait_ended(self, seconds: float) -> bool:
        """Waits for its top process to end."""
        return self._ended.wait(seconds)

    def remove(self) -> None:
        """Ends it and all that is left of its session, in order if it still can."""
        self._stage = _ignore  # a start that goes on is of no interest any more
        if not self._ended.is_set():
            self.send(signal.SIGTERM)
            self._ended.wait(GRACE_SECONDS)
        for _ in range(KILL_ROUNDS):
            # Oldest first, so that few can still be made; hence the rounds.
            alive = members(self.pid, self._ended_wall)
            for process in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()  # it looks at the start time too
            if not alive:
                break
            psutil.wait_procs(alive, timeout=2)
        self._ended.wait(10)

    def _environment(self) -> dict[str, str]:
        place = str(self.directory)
        return {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ASHUTDOWN_REPORT": str(self._report),
            # Whatever lies there afterwards is this server's.
            "TMPDIR": place,
            "VLLM_RPC_BASE_PATH": place,
            # The stages are read off the log.
            "VLLM_LOGGING_LEVEL": "INFO",
            "PYTHONUNBUFFERED": "1",
        }

    def _follow(self) -> None:
        assert self.process.stdout is not None
        reached = 0
        self._stage(STAGES[0][1])
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            for i in range(len(STAGES) - 1, reached, -1):
                if STAGES[i][0] in line:
                    reached = i
                    self._stage(STAGES[i][1])
                    break

    def _reap(self) -> None:
        # Blocking, in a thread: a wait with a time limit polls, and would measure
        # its own steps.
        self.exit_code = self.process.wait()
        self.ended_at, self._ended_wall = time.monotonic(), time.time()
        self._ended.set()

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def _ignore(words: str) -> None:
    """Takes the place of who listened."""


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
