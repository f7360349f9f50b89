"""The pace of the model under test, as a real model on a GPU has one.

The tiny model computes as fast as the machine can: it takes every core, the API server
delivers in bursts, and a stream may be over in the engine before its client has seen
the first piece. With a pace each step takes a known time in which the CPU is idle, so
that a test knows for how long its streams are in flight, at the least.
"""

from __future__ import annotations

import math

__all__ = ["STEP_SECONDS", "VARIABLE", "WORKER", "tokens_for"]

STEP_SECONDS = 0.008
"""For how long each step of the model leaves the CPU idle; it computes on top."""

VARIABLE = "TINY_MODEL_STEP_SECONDS"
"""The environment variable with another time; 0 is as fast as the machine can."""

WORKER = "tests.paced_worker.PacedWorker"
"""The class with that pace, for vLLM's ``--worker-cls``."""


def tokens_for(seconds: float) -> int:
    """So many tokens keep a stream in flight for `seconds`, at the least.

    A step gives a stream one token, and no step is shorter than the pace.
    """
    return math.ceil(seconds / STEP_SECONDS)
