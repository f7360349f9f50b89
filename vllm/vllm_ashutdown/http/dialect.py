"""How each API says that a request ended since its server is shutting down.

A client must raise, not return half an answer, and must be able to tell that it
is safe to retry. Each API has its own form for that, on a stream and off it.
"""

from __future__ import annotations

import json
from typing import Any

ERROR_TYPE = "EngineShutdownError"
STATUS = 503


class Dialect:
    """The forms of one API; this base is that of OpenAI's completions and chat."""

    def error(self, message: str) -> dict[str, Any]:
        """The body of a plain response."""
        return {
            "error": {
                "message": message,
                "type": ERROR_TYPE,
                "param": None,
                "code": STATUS,
            }
        }

    def event(self, message: str, sequence_number: int) -> dict[str, Any]:
        """The data of the terminal event of a stream.

        Args:
            message: For people.
            sequence_number: How many events the stream has had.
        """
        return self.error(message)

    def body_bytes(self, message: str) -> bytes:
        """The body of a plain response, as it is sent."""
        return json.dumps(self.error(message)).encode()

    def event_bytes(self, message: str, sequence_number: int) -> bytes:
        """The terminal event, as it is sent. No ``[DONE]`` follows it."""
        data = json.dumps(self.event(message, sequence_number))
        return f"event: error\ndata: {data}\n\n".encode()


class Responses(Dialect):
    """OpenAI's Responses API.

    Its ``error`` event alone would be handed to the caller as one more event;
    the ``error`` member beside it makes OpenAI's client raise as well.
    """

    def event(self, message: str, sequence_number: int) -> dict[str, Any]:
        return {
            "type": "error",
            "sequence_number": sequence_number,
            "code": str(STATUS),
            "message": message,
            "param": None,
            **self.error(message),
        }


class Messages(Dialect):
    """Anthropic's Messages API; ``overloaded_error`` is its word for "retry"."""

    def error(self, message: str) -> dict[str, Any]:
        return {
            "type": "error",
            "error": {"type": "overloaded_error", "message": message, "code": STATUS},
        }


_BY_PATH = {"/v1/responses": Responses(), "/v1/messages": Messages()}
_DEFAULT = Dialect()


def dialect_of(path: str) -> Dialect:
    """The dialect of a request path; OpenAI's where it is not known."""
    for part, dialect in _BY_PATH.items():
        if path.endswith(part) or part + "/" in path:
            return dialect
    return _DEFAULT
