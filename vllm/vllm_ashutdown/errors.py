"""Every error that this package raises, in one flat file.

::

    AShutdownError
    ├── EngineShutdownError      a request met an engine that is stopping
    │   └── EngineClosedError    a call met an engine that has stopped
    └── InvalidSettingError      a setting has a value that means nothing
"""

from __future__ import annotations

from typing import Any

ENDED = "The engine is shutting down and ended this request. It is safe to retry."
DIED = "The engine died and ended this request. It is safe to retry."
REFUSED = "The engine is shutting down and takes no new requests. It is safe to retry."
CLOSED = "This engine is closed. Make a new one to go on."


class AShutdownError(Exception):
    """Base of every error that vllm-ashutdown raises by its own decision."""


class EngineShutdownError(AShutdownError):
    """Raised when a request ends, or is refused, because its engine stops.

    It is never the request's fault and always safe to retry on another engine.
    Over HTTP it is a 503. A core that died unasked is a different thing: a program
    gets vLLM's own ``EngineDeadError``. A client over HTTP is told so, with a 503 too,
    since a supervisor starts the server anew.

    Attributes:
        output: What was produced until the end, as vLLM's ``RequestOutput``
            with the whole text and all token ids so far, whatever the
            request's output kind was; ``None`` for a request that was refused
            at the door and for one of a pooling model.
    """

    def __init__(self, message: str, *, output: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.output = output


class EngineClosedError(EngineShutdownError):
    """Raised by whatever needs an engine that has been shut down.

    To close it again is no error, and does nothing.
    """

    def __init__(self, message: str = CLOSED, *, output: Any = None) -> None:
        super().__init__(message, output=output)


class InvalidSettingError(AShutdownError, ValueError):
    """Raised when a setting has a value that means nothing.

    Raised before anything is touched: nothing is left half-stopped.
    """

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name}={value!r} is not valid: give {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed
