"""vllm.exceptions: an error of ours that vLLM's own layers know what to do with."""

from __future__ import annotations

import sys
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ..errors import CLOSED, EngineClosedError, EngineShutdownError

if TYPE_CHECKING:
    from ..core.stop import Stop


def shutdown_error(message: str, *, output: Any = None) -> EngineShutdownError:
    """An :class:`EngineShutdownError` that is also vLLM's own kind of a 503.

    It is an :class:`EngineClosedError` where the message says that.
    """
    ours = EngineClosedError if message == CLOSED else EngineShutdownError
    return _type(ours)(message, output=output)


def refusal(stop: Stop, message: str) -> EngineShutdownError:
    """What a call gets that meets ``stop``: ``message`` until it is over."""
    return shutdown_error(CLOSED if stop.outcome.done() else message)


def _again(message: str, output: Any) -> EngineShutdownError:
    return shutdown_error(message, output=output)


@cache
def _type(ours: type[EngineShutdownError]) -> type[EngineShutdownError]:
    """The error's class, with the bases that the installed vLLM offers.

    ``generate()`` lets a ``GracefulHTTPError`` pass as it is and would wrap
    anything else; the HTTP handlers answer a ``GenerationError`` without a
    traceback in the log. The first came with 0.29; in 0.28 ``generate()`` lets a
    ``VLLMClientError`` pass. 0.28 has ``GenerationError`` in a module of the
    API server, which a program without one need not import.
    """
    import vllm.exceptions as vllm_exceptions

    def find(name: str, *modules: Any) -> list[type]:
        found = (getattr(module, name, None) for module in modules if module)
        return [cls for cls in found if cls is not None][:1]

    bases = find(
        "GenerationError",
        vllm_exceptions,
        sys.modules.get("vllm.entrypoints.openai.engine.protocol"),
    ) + (
        find("GracefulHTTPError", vllm_exceptions)
        or find("VLLMClientError", vllm_exceptions)
    )

    def init(self: Any, message: str, *, output: Any = None) -> None:
        # Not the bases' own: each would ask for arguments of its own.
        Exception.__init__(self, message)
        self.message, self.output = message, output
        self.status_code = self.http_status = HTTPStatus.SERVICE_UNAVAILABLE

    def reduce(self: Any) -> tuple[Any, ...]:
        # The class is made here and has no name that another process could find.
        return _again, (self.message, self.output)

    return type(
        ours.__name__,
        (ours, *bases),
        {
            "__init__": init,
            "__reduce__": reduce,
            "__doc__": ours.__doc__,
            "__module__": ours.__module__,
        },
    )
