"""The name ``signal`` in vLLM's modules that run in child processes.

vLLM sets its handlers there, and gives signals their default back before it cleans up.
In a child that is tied to its parent the first is what it does when it is told to
stop, and the second must not happen: a signal would end the cleanup half way.
"""

from __future__ import annotations

import signal as _signal
from types import ModuleType
from typing import Any

from . import child


class Signals(ModuleType):
    """Python's ``signal`` but for its function of the same name."""

    def __init__(self) -> None:
        super().__init__("signal")

    def __getattr__(self, name: str) -> Any:
        return getattr(_signal, name)

    @staticmethod
    def signal(number: int, handler: Any) -> Any:
        """Sets a handler; where a parent decides, it is noted as what to do then."""
        tie = child.current()
        if tie is None or number not in child.SIGNALS:
            return _signal.signal(number, handler)
        before = _signal.getsignal(number)
        tie.means(number, handler)
        return before
