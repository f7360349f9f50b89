"""A descriptor of a process itself, to wait for its end.

``multiprocessing``'s sentinel is the end of a pipe that whatever the process has forked
holds open too: it may stay silent long after the process is over.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from multiprocessing.connection import wait
from typing import Any

_LONGEST_SECONDS = 86400.0
"""Of one wait: the kernel counts milliseconds, and not without end."""


@contextlib.contextmanager
def handles(processes: Iterable[Any]) -> Iterator[dict[int, Any]]:
    """Those of ``processes`` that still run, each by a handle of it.

    Args:
        processes: Of ``multiprocessing``, begun by this process.
    """
    running: dict[int, Any] = {}
    with contextlib.ExitStack() as opened:
        for process in processes:
            handle = process.sentinel
            # Not every Python has it, nor lets every sandbox it through.
            with contextlib.suppress(AttributeError, OSError):
                handle = os.pidfd_open(process.pid)
                opened.callback(os.close, handle)
            # Not reaped before this, so the pid was its own and nobody else's.
            if process.exitcode is None:
                running[handle] = process
        yield running


def ready(descriptors: Iterable[int], seconds: float) -> list[Any]:
    """Those of ``descriptors`` that are ready; waits for the first, however long.

    It may return none a little early, and after a day.
    """
    return wait(list(descriptors), max(0.0, min(seconds, _LONGEST_SECONDS)))
