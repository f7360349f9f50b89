"""A real Jupyter kernel, used as a front end uses one: cell by cell."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests import resources
from tests.scenes import BAD, ROOT

SECONDS = 1500.0
"""For a cell: one of them makes an engine, on a machine that others use."""

GONE_SECONDS = 20.0
"""For processes to be gone: they are in a moment where nobody else is at work."""

_KERNELS = re.compile(r"^task: .*\bKernel\.dispatch_control\b")
"""What it says behind asyncio's word of the task in which it ends itself."""

_TERMINAL = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Cell:
    """What came of one so far.

    Attributes:
        said: On stdout and stderr.
        error: Name of the exception that ended it; empty if none did.
        trace: Of that.
    """

    said: str = ""
    error: str = ""
    trace: str = ""


@dataclass
class Kernel:
    """One kernel, and what it and its children have said.

    It is reached through sockets in its own directory: no port is taken from anyone.

    Args:
        temporary: Its directory for everything that it keeps.
        environment: On top of what each gets.
    """

    temporary: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.said = ""
        self.files = self.temporary / "files"
        self.files.mkdir()
        self._log = self.temporary / "kernel.log"
        self._manager = KernelManager(
            connection_file=str(self.temporary / "connection.json"),
            transport="ipc",
            ip=str(self.temporary / "k"),
        )
        self._client: BlockingKernelClient | None = None
        self._began = ""

    def __enter__(self) -> Self:
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "TMPDIR": str(self.files),
            "IPYTHONDIR": str(self.temporary / "ipython"),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "vllm"), str(ROOT)]),
        }
        with self._log.open("w") as log:
            self._manager.start_kernel(
                env=environment | dict(self.environment),
                cwd=str(self.temporary),
                stdout=log,
                stderr=log,
            )
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=SECONDS)
        self.process = psutil.Process(self._manager.provisioner.pid)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._manager.has_kernel:
            left = resources.tree(self.process)
            self._manager.shutdown_kernel(now=True)
            resources.kill(left)
        if self._client is not None:
            self._client.stop_channels()
        if error is not None:
            print(self.said, self._log.read_text())

    def children(self) -> list[psutil.Process]:
        """All that it has begun, but for Python's resource tracker, which stays."""
        return [
            one
            for one in self.process.children(recursive=True)
            if resources.kind_of(one) != "resource_tracker"
        ]

    # -- cells -----------------------------------------------------------------

    def begin(self, code: str, until: str) -> Cell:
        """Begins a cell, and returns as soon as it has said ``until``."""
        assert self._client is not None
        self._began = self._client.execute(code)
        cell = Cell()
        self._read(cell, until)
        return cell

    def end(self, cell: Cell) -> Cell:
        """Waits until the cell that was begun is over."""
        self._read(cell, None)
        return cell

    def run(self, code: str) -> Cell:
        """A cell that must not fail."""
        assert self._client is not None
        self._began = self._client.execute(code)
        cell = self.end(Cell())
        assert not cell.error, cell.trace
        return cell

    def fail(self, code: str) -> str:
        """A cell that must fail; says with what exception."""
        assert self._client is not None
        self._began = self._client.execute(code)
        return self.end(Cell()).error

    def interrupt(self) -> None:
        """As the button does: SIGINT to the kernel's whole process group."""
        self._manager.interrupt_kernel()

    def _read(self, cell: Cell, until: str | None) -> None:
        assert self._client is not None
        deadline = time.monotonic() + SECONDS
        while until is None or until not in cell.said:
            left = deadline - time.monotonic()
            message: dict[str, Any] = self._client.get_iopub_msg(timeout=left)
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                self.said += content["text"]
            if message["parent_header"].get("msg_id") != self._began:
                continue
            if kind == "stream":
                cell.said += content["text"]
            elif kind == "error":
                cell.error = content["ename"]
                cell.trace = _TERMINAL.sub("", "\n".join(content["traceback"]))
            elif kind == "status" and content["execution_state"] == "idle":
                assert until is None, f"{until!r} was not said: {cell}"
                return

    # -- the end ---------------------------------------------------------------

    def shut_down(self, *, now: bool = False) -> float:
        """Ends it as a front end does, or kills it at once; says how long it took."""
        began = time.monotonic()
        self._manager.shutdown_kernel(now=now)
        return time.monotonic() - began

    def faults(self) -> list[str]:
        """What it said that it should not have, and the files that it has left."""
        said = (self.said + self._log.read_text()).splitlines()
        found = [
            line
            for line, behind in zip(said, [*said[1:], ""], strict=True)
            if BAD.search(line) and not _KERNELS.search(behind)
        ]
        left = [
            one.name
            for one in self.files.iterdir()
            if not one.name.startswith(("torchinductor", "tmp"))
        ]
        return [*found, *left]
