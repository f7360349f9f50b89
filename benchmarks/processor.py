"""For how long a thread was ready to run, and another one had the processor."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Stopwatch"]

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Three figures, of which the second are the nanoseconds that it waited in a queue."""


class Stopwatch:
    """The time of one thread, less what it waited for a processor. A context manager.

    What else runs on a machine makes everything on it slower, and is not what a
    benchmark is to tell of. A thread that sleeps, waits for a lock or for the disk is
    not in that queue: all of that counts. Where the kernel does not tell, all counts.
    """

    def __enter__(self) -> Self:
        exists = _SCHEDSTAT.exists()
        # Opened here, it stays the one of this thread.
        self._file = os.open(_SCHEDSTAT, os.O_RDONLY) if exists else None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is not None:
            os.close(self._file)

    def read(self) -> float:
        """Seconds on a clock that stands still while the thread waits in the queue."""
        return time.perf_counter() - self.queued()

    def queued(self) -> float:
        """Seconds that the thread has waited in that queue, since it began."""
        if self._file is None:
            return 0.0
        return int(os.pread(self._file, 128, 0).split()[1]) / 1e9
