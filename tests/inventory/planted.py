"""Real things to be seen: processes that hold what they were told to hold."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

from vllm_ashutdown.inventory import Process

SHM = Path("/dev/shm")

HOLD = "print('ready', flush=True); sys.stdin.read()"

MAPPED = """
import ctypes, os
file = os.open({path!r}, os.O_RDWR)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3,
                      ctypes.c_long]
memory = libc.mmap(None, 1, 1, 1, file, 0)  # PROT_READ, MAP_SHARED
assert memory != ctypes.c_void_p(-1).value
os.close(file)
"""
"""Maps it without keeping it open, as sem_open(3) does; Python's mmap keeps it."""

LISTENING = """
import socket
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
"""


@contextlib.contextmanager
def child(setup: str = "") -> Generator[tuple[Process, list[str]], None, None]:
    """A process that does ``setup`` and lives until the block ends.

    Yields:
        It, and the lines that ``setup`` has printed.
    """
    program = f"import sys\n{setup}\n{HOLD}"
    with subprocess.Popen(
        [sys.executable, "-IS", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as popen:
        assert popen.stdout is not None
        lines = []
        while (line := popen.stdout.readline()) != "ready\n":
            assert line, "the child failed"
            lines.append(line.strip())
        process = Process.of(popen.pid, "Worker")
        assert process is not None
        try:
            yield process, lines
        finally:
            popen.kill()


def refused(family: int) -> None:
    """A sandbox's answer to a question over netlink."""
    raise PermissionError(family)
