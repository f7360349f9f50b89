"""A cluster of Ray's on this machine alone, for one test, and what it leaves."""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests import resources
from tests.scenes import BAD

SECONDS = 1500.0
"""For a scene: a cluster and an engine or two, on a machine that others use."""

GONE_SECONDS = 30.0
"""For processes to be gone: Ray tells a worker of the end of its driver in its time."""

OBJECTS = 80 * 1024 * 1024
"""Ray's smallest store of objects, in /dev/shm. Nothing here is put into it."""

OURS = re.compile(rf"WARNING.*\[shutdown\]|{BAD.pattern}")
"""What no worker's log may say. vLLM warns of much while it starts: that may be."""


class Cluster:
    """Where it keeps its files, in a path as short as its sockets need."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ray"))
        # Else it makes one for good in the home directory.
        token = self.directory / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.environment = {
            "RAY_TMPDIR": str(self.directory),
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def close(self) -> None:
        """Takes its files away."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """What workers have written: actors, replicas, and their children."""
        logs = sorted(self.directory.glob("ray/session_2*/logs/worker-*"))
        assert logs, list(self.directory.rglob("*"))
        return "\n".join(path.read_text(errors="replace") for path in logs)

    def faults(self) -> list[str]:
        """What they should not have."""
        return [line for line in self.log().splitlines() if OURS.search(line)]


class Family:
    """An actor and its children, from while they live to when they are gone."""

    def __init__(self, pids: list[int], before: set[str]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        kinds = {resources.kind_of(one) for one in self._processes}
        assert {"EngineCore", "Worker"} <= kinds, kinds
        held = [resources.memory_of(pid) for pid in pids]
        self._memory = set().union(*held) - before

    def left(self) -> list[str]:
        """What is there still, once it had its time to go."""
        _, alive = psutil.wait_procs(self._processes, timeout=GONE_SECONDS)
        memory = self._memory & resources.memory_names()
        return [*map(str, alive), *sorted(memory)]


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """One, whose files are gone afterwards."""
    made = Cluster()
    try:
        yield made
    finally:
        made.close()
