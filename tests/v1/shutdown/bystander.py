"""A process beside vLLM, below the same parent, that no stop may touch."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from tests.server import Server

__all__ = ["WITH_A_BYSTANDER", "bystander_of"]

WITH_A_BYSTANDER = (
    sys.executable,
    str(Path(__file__).with_name("serve_with_a_child.py")),
)
"""The command of a server that has one."""


def bystander_of(server: Server) -> psutil.Process:
    """The bystander of this server; from here on it does not count as left over."""
    line = server.wait_for("bystander", 5)
    assert line is not None
    pid = int(line.text.rpartition(" ")[2])
    server.watch.disown(pid)
    return psutil.Process(pid)
