"""The load: answers that are being streamed when the stop comes, byte by byte.

No client library reads them. One would try again, or take a connection that just ends
for an end like any other; here it is the difference that counts.
"""

from __future__ import annotations

import enum
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .address import Address

DONE = "[DONE]"
RETRYABLE = 503
WHOLE = ("stop", "length")
"""The reasons with which an answer comes to its own end."""


class End(enum.StrEnum):
    """How a stream came to its end, as its client sees it."""

    OPEN = "still open"
    """Nobody has told it anything."""
    COMPLETED = "completed"
    """Whole, and the server said so in both ways."""
    ENDED = "ended by an error"
    """The server ended it and said so: one error event, and no ``[DONE]``."""
    REFUSED = "refused"
    """An answer with an error's status; no stream began."""
    CUT = "cut"
    """The connection was over, and nothing had been said."""
    LIED = "ended like a success"
    """It was cut, and looks to its client like a whole answer."""

    @property
    def is_honest(self) -> bool:
        """Its client knows what it has, and what it has not."""
        return self in (End.COMPLETED, End.ENDED, End.REFUSED)


@dataclass(frozen=True, slots=True)
class Result:
    """What one client had at one moment.

    Attributes:
        end: How its stream ended.
        words: The same in more words.
        tokens: How many had come.
        flowing: Some had, and more could.
        retryable: The server said that it is safe to ask again.
        error: What the server said went wrong, or what the connection did.
        over_at: When it was over, by the monotonic clock; ``None`` if it was not.
    """

    end: End
    words: str
    tokens: int
    flowing: bool
    retryable: bool
    error: str
    over_at: float | None


class Stream:
    """One streamed answer, read by a thread of its own.

    Attributes:
        text: What has come so far.
        tokens: How many tokens that is: as the server counts them where the
            stream came to its end, else one a chunk.
        finish_reason: The server's, if it gave one.
        done: ``[DONE]`` came.
        status: The HTTP status; 0 before there is one.
        error: What the server said went wrong, or what the connection did.
        over: Set when nothing more will come.
        over_at: When that was, by the monotonic clock.
    """

    def __init__(self, address: Address, path: str, body: Mapping[str, Any]) -> None:
        """Opens nothing yet: :meth:`start` does.

        Args:
            address: The server's.
            path: Of the API, for example ``/v1/completions``.
            body: The request, without what makes it a stream.
        """
        self.text = ""
        self.tokens = 0
        self.finish_reason: str | None = None
        self.done = False
        self.status = 0
        self.error = ""
        self.over = threading.Event()
        self.over_at = 0.0
        self._address = address
        self._path = path
        self._body = {
            **body,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self._limit = body.get("max_tokens")
        self._event: dict[str, Any] | None = None
        self._events = 0
        self._abandoned = False
        self._moved = threading.Condition()

    def start(self) -> None:
        """Sends the request and begins to read."""
        threading.Thread(target=self._run, name="stream", daemon=True).start()

    def abandon(self) -> None:
        """Hangs up at the next word that comes."""
        self._abandoned = True

    def wait_for(self, tokens: int, seconds: float) -> bool:
        """Waits until so many tokens have come; false if they did not."""
        with self._moved:
            self._moved.wait_for(
                lambda: self.tokens >= tokens or self.over.is_set(), seconds
            )
            return self.tokens >= tokens

    @property
    def end(self) -> End:
        """How it ended."""
        if not self.over.is_set():
            return End.OPEN
        if self.status >= 400:
            return End.REFUSED
        if self.done:
            return End.COMPLETED if self._is_whole else End.LIED
        return End.ENDED if self._events == 1 else End.CUT

    @property
    def _is_whole(self) -> bool:
        if self._events or self.finish_reason not in WHOLE:
            return False
        short = self._limit is not None and self.tokens < self._limit
        return not (short and self.finish_reason == "length")

    @property
    def result(self) -> Result:
        """What its client has now."""
        over = self.over.is_set()
        return Result(
            self.end,
            self.words,
            self.tokens,
            bool(self.tokens) and not over,
            self.is_retryable,
            self.error,
            self.over_at if over else None,
        )

    @property
    def is_retryable(self) -> bool:
        """The server said that it is safe to ask again."""
        error = self._event or {}
        return RETRYABLE in (self.status, error.get("code"))

    @property
    def words(self) -> str:
        """How it ended, for people."""
        end = self.end
        reason = self.finish_reason or "none"
        if end is End.COMPLETED:
            return f"{end}: {reason}, {DONE}"
        if end is End.LIED:
            return f"{end}: {DONE} with finish reason {reason}"
        if end is End.REFUSED:
            return f"{end}: HTTP {self.status}"
        if end is End.ENDED and self.is_retryable:
            return f"{end}: {RETRYABLE}, safe to retry"
        return str(end)

    def _run(self) -> None:
        import httpx

        try:
            self._read()
        except (httpx.HTTPError, OSError) as error:
            self.error = self.error or f"{type(error).__name__}: {error}"
        finally:
            with self._moved:
                self.over_at = time.monotonic()
                self.over.set()
                self._moved.notify_all()

    def _read(self) -> None:
        with (
            self._address.client() as client,
            client.stream("POST", self._path, json=self._body) as answer,
        ):
            if answer.is_error:
                answer.read()
                self.error = _message(answer.text)
            self.status = answer.status_code
            for line in answer.iter_lines() if not answer.is_error else ():
                if self._abandoned:
                    break
                name, _, data = line.partition(":")
                if name == "data":
                    self._take(data.strip())

    def _take(self, data: str) -> None:
        with self._moved:
            self._moved.notify_all()
            if data == DONE:
                self.done = True
                return
            event = _parse(data)
            if isinstance(event.get("error"), dict):
                self._events += 1
                self._event = event["error"]
                self.error = _message(data)
            for choice in event.get("choices") or ():
                text = choice.get("text") or (choice.get("delta") or {}).get("content")
                self.text += text or ""
                self.tokens += bool(text)
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
            usage = event.get("usage")
            if usage:
                self.tokens = usage["completion_tokens"]


def _parse(data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _message(data: str) -> str:
    error = _parse(data).get("error")
    words = error.get("message") if isinstance(error, dict) else None
    return " ".join(str(words or data).split())[:300]
