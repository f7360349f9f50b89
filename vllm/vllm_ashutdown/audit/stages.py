"""How far a start is, read off the server's log."""

from __future__ import annotations

from collections.abc import Callable

Stage = Callable[[str], None]
"""Is told of each stage as it begins."""

# What vLLM logs as a stage begins, and that stage in words.
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


def ignore(words: str) -> None:
    """Takes the place of who listened."""


class Stages:
    """Those of one start, each told of once and in their order.

    One that is over does not come back when another process logs its words again.
    """

    def __init__(self, tell: Stage) -> None:
        """Tells of the first, which begins with the process."""
        self._tell = tell
        self._reached = 0
        tell(STAGES[0][1])

    def see(self, line: str) -> None:
        """Takes one more line of the log."""
        for i in range(len(STAGES) - 1, self._reached, -1):
            if STAGES[i][0] in line:
                self._reached = i
                self._tell(STAGES[i][1])
                return
