"""A real vLLM server to be stopped: started, listened to, signalled, looked after.

    with Server(directory, "--shutdown-timeout", "30") as server:
        ...
        server.signal(signal.SIGTERM)
        end = server.wait(5)
        assert end.code == 0
        assert server.error_lines() == []
        assert server.leftovers() == []

Its output comes through a pipe that a thread reads, so that readiness and each line
of the log are events with a time, and its exit is timed by a thread of its own.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from signal import Signals
from types import TracebackType
from typing import Self

import psutil

from tests import pace, resources
from tests.address import HOST, Address
from tests.certificate import Certificate
from tests.tiny_model import tiny_model
from tests.topologies import ONE, Topology
from vllm_ashutdown.core.report import ShutdownReport

__all__ = ["COMMAND", "MODEL", "End", "Line", "Server"]

MODEL = "tiny"
"""The name under which the model is served."""

COMMAND = (sys.executable, "-m", "vllm_ashutdown.cli")
"""What starts a server when ``serve`` and its options follow."""

READY = "Application startup complete"
"""uvicorn's word for it; each API server says it last before it opens the port."""

READY_SECONDS = float(os.environ.get("TESTS_READY_SECONDS", "100"))
"""For each process of vLLM's: a start takes 8 s for each on two cores that do nothing
else, and much longer beside others."""

ROOT = Path(__file__).resolve().parent.parent

_BAD = re.compile(
    r"""
    \ ERROR\ | ^ERROR: | \ CRITICAL\ | ^CRITICAL:      # vLLM's loggers, uvicorn's
    | Traceback\ \(most\ recent\ call\ last\)
    | force\ killing                                   # vLLM's process manager
    | resource_tracker: | leaked\ (shared_memory|semaphore)
    | destroy_process_group                            # torch.distributed
    | Task\ was\ destroyed | was\ never\ (retrieved|awaited)
    | Exception\ ignored\ in
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the log, and when it came, on `time.monotonic`."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class End:
    """How the server ended.

    Attributes:
        code: Its exit code, negative for a signal; None if it hung and was killed.
        seconds: From the first signal to its exit.
        at: The moment of its exit, on `time.monotonic`.
    """

    code: int | None
    seconds: float
    at: float

    @property
    def hung(self) -> bool:
        return self.code is None


class Server:
    """One server process with all that belongs to it. A context manager.

    Args:
        directory: Where its log and its report go.
        options: For vLLM's ``serve``, behind the model and what every test wants.
        environment: On top of the caller's, whose own settings of the plugin are
            left out.
        command: What to start instead of `COMMAND`.
        topology: Its shape, whose options come before the others.
        model: The path of what it serves; the tests' tiny model, if not given.
        port: Where it listens; one that is free, if not given.
        until_ready: Whether to wait until it serves.

    Attributes:
        address: Where it answers.
        brake: What slows its model down.
        lines: What it has said so far.
        signalled_at: The moment of each signal, on `time.monotonic`.
    """

    def __init__(
        self,
        directory: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = COMMAND,
        topology: Topology = ONE,
        model: str | None = None,
        port: int | None = None,
        until_ready: bool = True,
    ) -> None:
        self.topology = topology
        self._model = model
        self._port = port
        self._waits = until_ready
        self.lines: list[Line] = []
        self.signalled_at: list[float] = []
        self.log_path = directory / "server.log"
        self.report_path = directory / "report.json"
        self.brake = pace.Brake(directory / "brake")
        self._directory = directory
        self._command = command
        self._options = (*topology.options, *options)
        self._extra = {**topology.environment, **(environment or {})}
        self._news = threading.Condition()
        self._over = False
        self._exited = threading.Event()
        self._exited_at = 0.0

    # -- starting --------------------------------------------------------------

    def __enter__(self) -> Self:
        # Short, since sockets lie in it and their paths have a limit.
        self.temporary = Path(tempfile.mkdtemp(prefix="ash-"))
        arguments = self._arguments()
        before = resources.memory_names()
        self.process = subprocess.Popen(
            arguments,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.watch = resources.Watch(
            psutil.Process(self.process.pid), self.address.port, self.temporary, before
        )
        self.watch.start()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._reap, daemon=True).start()
        try:
            if self._waits:
                self._until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def _arguments(self) -> list[str]:
        arguments = [
            *(*self._command, "serve", self._model or str(tiny_model())),
            *("--served-model-name", MODEL),
            *("--enforce-eager", "--worker-cls", pace.WORKER),
            # vLLM wants that share of a memory node to be free, by default nearly all.
            *("--gpu-memory-utilization", "0.5"),
            # Room for 16 of the longest requests. A cache of a gigabyte would be filled
            # with zeros by each start, and taken back page by page by each stop.
            *("--num-gpu-blocks-override", "1024", *self._options),
        ]
        self.address = Address(self._port or resources.free_port())
        if self.topology.uds:
            path = self.temporary / "http"
            self.address = dataclasses.replace(self.address, uds=path)
            return [*arguments, "--uds", str(path)]
        if self.topology.tls:
            made = Certificate.make(self._directory)
            self.address = dataclasses.replace(
                self.address, certificate=made.certificate
            )
            arguments += ["--ssl-keyfile", str(made.key)]
            arguments += ["--ssl-certfile", str(made.certificate)]
        return [*arguments, "--host", HOST, "--port", str(self.address.port)]

    def _environment(self) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("VLLM_ASHUTDOWN")
        }
        paths = [str(ROOT / "vllm"), str(ROOT), inherited.get("PYTHONPATH", "")]
        return inherited | {
            # This checkout's package, also where another one is installed, and the
            # worker that has a pace.
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.temporary),
            pace.BRAKE: str(self.brake.path),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ASHUTDOWN_REPORT": str(self.report_path),
            **self._extra,
        }

    def _until_ready(self) -> None:
        seconds = READY_SECONDS * self.topology.processes
        deadline = time.monotonic() + seconds
        if not self.wait_for(READY, seconds, self.topology.api_servers):
            raise RuntimeError(f"the server did not start:\n{self._tail()}")
        # That line is uvicorn's last before it listens; there is none after it.
        while self.get("/health")[0] != 200:
            if self._exited.is_set() or time.monotonic() > deadline:
                raise RuntimeError(f"the server is not healthy:\n{self._tail()}")
            time.sleep(0.01)
        self.watch.look()

    def get(self, path: str) -> tuple[int | None, str]:
        """Status and body of a GET; no status where nothing answers."""
        with closing(self.address.connection(30)) as connection:
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                return response.status, response.read().decode()
            except (OSError, HTTPException):
                return None, ""

    def shown(self) -> dict[str, float]:
        """What ``/metrics`` says of a stop: names and labels, without what all have."""
        prefix = "vllm:shutdown_"
        lines = [one.rpartition(" ") for one in self.get("/metrics")[1].splitlines()]
        return {
            name.removeprefix(prefix): float(value)
            for name, _, value in lines
            if name.startswith(prefix)
        }

    def until_running(self, count: int, seconds: float = 60.0) -> None:
        """Returns when the engine itself says that it runs `count` requests."""
        deadline = time.monotonic() + seconds
        now: float | None = None
        while now != count and time.monotonic() < deadline:
            lines = self.get("/metrics")[1].splitlines()
            now = sum(
                float(line.rpartition(" ")[2])
                for line in lines
                if line.startswith("vllm:num_requests_running")
            )
            time.sleep(0.02)
        assert now == count, f"{now} requests run, not {count}"

    # -- listening -------------------------------------------------------------

    def _read(self) -> None:
        # It ends when the last process that holds the pipe has closed it.
        assert self.process.stdout is not None
        with self.log_path.open("w") as log, self.process.stdout as output:
            for text in output:
                log.write(text)
                log.flush()
                with self._news:
                    self.lines.append(Line(time.monotonic(), text.rstrip("\n")))
                    self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()

    def wait_for(self, text: str, seconds: float, count: int = 1) -> Line | None:
        """The `count`-th line of the log with `text` in it; None if none comes."""
        seen = 0
        found: list[Line] = []

        def settled() -> bool:
            nonlocal seen
            new, seen = self.lines[seen:], len(self.lines)
            found.extend(line for line in new if text in line.text)
            return len(found) >= count or self._over

        with self._news:
            self._news.wait_for(settled, seconds)
        return found[count - 1] if len(found) >= count else None

    @property
    def log(self) -> str:
        """All of its output so far."""
        return "\n".join(line.text for line in self.lines)

    def error_lines(self) -> list[str]:
        """The lines that a stop which was asked for must not write."""
        return [line.text for line in self.lines if _BAD.search(line.text)]

    def _tail(self) -> str:
        return "\n".join(line.text for line in self.lines[-40:])

    # -- stopping --------------------------------------------------------------

    def processes_by_kind(self) -> dict[str, list[psutil.Process]]:
        """Its living processes: as `Topology.kinds`, ``resource_tracker``, ``other``.

        The top process is the API server itself where there is just one.
        """
        self.watch.look()
        top = "launcher" if "launcher" in self.topology.kinds else "APIServer"
        found: dict[str, list[psutil.Process]] = {}
        for process in filter(resources.is_alive, self.watch.processes):
            is_top = process.pid == self.process.pid
            kind = top if is_top else resources.kind_of(process)
            found.setdefault(kind, []).append(process)
        return found

    def signal(self, number: Signals) -> float:
        """Signals the top process; gives the moment, on `time.monotonic`."""
        at = time.monotonic()
        self.process.send_signal(number)
        self.signalled_at.append(at)
        return at

    def signal_group(self, number: Signals) -> float:
        """Signals all of its processes at once, as a terminal's Ctrl-C does."""
        at = time.monotonic()
        os.killpg(self.process.pid, number)
        self.signalled_at.append(at)
        return at

    def signal_process(self, process: psutil.Process, number: Signals) -> float:
        """Signals one of its processes; gives the moment."""
        at = time.monotonic()
        process.send_signal(number)
        self.signalled_at.append(at)
        return at

    def gone_within(self, seconds: float) -> tuple[float, list[str]]:
        """Waits until every process that was seen has ended; ask at once.

        Returns:
            The seconds from the last signal to the end of the last process that has
            ended, and a line for each that still runs.
        """
        gone = self.watch.gone_within(seconds)
        return gone.at - self.signalled_at[-1], gone.left

    def _reap(self) -> None:
        # Waits in the kernel. Popen.wait() with a timeout looks every 50 ms.
        self.process.wait()
        self._exited_at = time.monotonic()
        self._exited.set()

    def wait(self, seconds: float) -> End:
        """Waits for the exit. What has not left after `seconds` is killed."""
        left = self._exited.wait(seconds)
        if not left:
            self.watch.look()
            resources.kill(self.watch.processes)
            self._exited.wait()
        self._reader.join(2)  # what its last process says comes behind the exit
        first = self.signalled_at[0] if self.signalled_at else self._exited_at
        return End(
            self.process.returncode if left else None,
            self._exited_at - first,
            self._exited_at,
        )

    @property
    def report(self) -> ShutdownReport:
        """The report that it wrote."""
        return ShutdownReport.from_json(self.report_path.read_text())

    def leftovers(self) -> list[str]:
        """What is left of it, one line each; ask once it has exited."""
        return self.watch.left()

    def faults(self, end: End) -> list[str]:
        """What was wrong with a stop that was asked for; empty is an ordered one."""
        found = []
        if end.hung:
            found.append(f"hung, and was killed after {end.seconds:.1f} s")
        elif end.code != 0:
            found.append(f"exit code {end.code}")
        return found + self.error_lines() + self.leftovers()

    def close(self) -> None:
        """Ends what still runs and removes the temporary files."""
        self.brake.release()
        self.watch.stop()
        resources.kill(filter(resources.is_alive, self.watch.processes))
        self.watch.take_away()
        self._reader.join(2)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
