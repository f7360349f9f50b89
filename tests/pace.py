"""The pace of the model under test, as a real model on a GPU has one.

The tiny model computes as fast as the machine can: it takes every core, the API server
delivers in bursts, and a stream may be over in the engine before its client has seen
the first piece. With a pace each step takes a known time in which the CPU is idle, so
that a test knows for how long its streams are in flight, at the least.

Streams that shall come to their end soon need more. Some processes begin seconds later
than others: a first stream can be over before the last one flows. A test pulls the
brake until all of that is behind it, and then lets them run.
"""

from __future__ import annotations

import fcntl
import math
from pathlib import Path
from typing import TextIO

__all__ = [
    "BRAKE",
    "BRAKED_SECONDS",
    "STEP_SECONDS",
    "VARIABLE",
    "WORKER",
    "Brake",
    "tokens_for",
]

STEP_SECONDS = 0.008
"""For how long each step of the model leaves the CPU idle; it computes on top."""

BRAKED_SECONDS = 0.1
"""The same while the brake is pulled."""

VARIABLE = "TINY_MODEL_STEP_SECONDS"
"""The environment variable with another pace; 0 is as fast as the machine can."""

HANGS = "TESTS_WORKER_HANGS"
"""The environment variable that, set to 1, has a worker's cleanup never return."""

BRAKE = "TINY_MODEL_BRAKE"
"""The environment variable with the path of the brake, for the workers."""

WORKER = "tests.paced_worker.PacedWorker"
"""The class with that pace, for vLLM's ``--worker-cls``."""


def tokens_for(seconds: float) -> int:
    """So many tokens keep a stream in flight for `seconds`, at the least.

    A step gives a stream one token, and no step is shorter than the pace.
    """
    return math.ceil(seconds / STEP_SECONDS)


class Brake:
    """Slows all workers of one server down for as long as it is pulled.

    It is a lock on a file: each worker looks at it before each step, and it is
    released with the process that holds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: TextIO | None = None
        path.touch()

    def pull(self) -> None:
        """Slows them down, from each one's next step on."""
        self._held = self.path.open()
        fcntl.flock(self._held, fcntl.LOCK_EX)

    def release(self) -> None:
        """Lets them run again, if it was pulled."""
        if self._held is not None:
            self._held.close()
            self._held = None
