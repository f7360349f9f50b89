"""The ASGI layer that refuses what comes too late and ends what is cut short.

It is the innermost one, next to the routes: whatever a deployment puts around
them (keys, request ids, compression, metrics) sees its answers like any other.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ..core.exchange import Exchange, current_exchange
from ..errors import REFUSED
from .dialect import STATUS, Dialect, dialect_of
from .gate import Gate

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("vllm.ashutdown")

READINESS_PATHS = ("/health", "/ping", "/ready")
"""Turn false with the first sign of a stop, whatever the method."""

DRAIN_PATH = "/drain"
"""Steers a drain: heard in it, and nothing that it waits for."""

READING_METHODS = ("GET", "HEAD", "OPTIONS")
"""Ask nothing of the engine: metrics and the like stay readable in a drain."""


class ShutdownMiddleware:
    """Stands between the server and its routes for the whole of its life."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        """Wraps ``app``; ``gate`` says whether a stop is under way."""
        self.app = app
        self.gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        kind = scope["type"]
        if kind == "http" and _steers(scope):
            await self.app(scope, receive, send)
        elif kind == "http":
            path, reading = scope["path"], scope["method"] in READING_METHODS
            if self.gate.closed and (
                not reading or path.rstrip("/").endswith(READINESS_PATHS)
            ):
                if not reading:  # a probe is no request
                    self.gate.refuse()
                await self._send_error(dialect_of(path), REFUSED, send)
            elif reading:
                await self.app(scope, receive, send)
            else:
                with self.gate.tally.busy():
                    await self._serve(scope, receive, send)
        elif kind == "websocket" and self.gate.closed:
            self.gate.refuse()
            await send({"type": "websocket.close", "code": 1012, "reason": REFUSED})
        else:
            await self.app(scope, receive, send)

    async def _send_error(self, dialect: Dialect, message: str, send: Send) -> None:
        body = dialect.body_bytes(message)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"retry-after", str(self.gate.retry_after).encode()),
            # The next request of this client must find another server.
            (b"connection", b"close"),
        ]
        await send(
            {"type": "http.response.start", "status": STATUS, "headers": headers}
        )
        await send({"type": "http.response.body", "body": body})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange()
        answer = _Answer(self, exchange, dialect_of(scope["path"]), send)
        token = current_exchange.set(exchange)
        try:
            await self.app(scope, receive, answer.send)
        except Exception:
            if not exchange.ended:
                raise
            # The handler tripped over the engine's end, which is told below.
            logger.debug("[shutdown] a handler raised as it was cut", exc_info=True)
        finally:
            current_exchange.reset(token)
        if exchange.ended:
            await answer.cut()


def _steers(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) == DRAIN_PATH


class _Answer:
    """What one exchange has sent, and the one way in which it may be cut.

    Once the engine has ended a request of the exchange, whatever its handler
    still sends is not an answer: vLLM's own would close the stream with
    ``[DONE]``, like a success.
    """

    def __init__(
        self,
        middleware: ShutdownMiddleware,
        exchange: Exchange,
        dialect: Dialect,
        send: Send,
    ) -> None:
        self._middleware = middleware
        self._exchange = exchange
        self._dialect = dialect
        self._send = send
        self._started = False
        self._streams = False
        self._chunks = 0
        self._over = False
        self._cut = False

    async def send(self, message: Message) -> None:
        if self._cut:
            return
        # An answer that is not a stream is only begun when it is whole.
        if self._exchange.ended and not self._over and self._can_be_cut:
            await self.cut()
            return
        if message["type"] == "http.response.start":
            self._started = True
            self._streams = any(
                name.lower() == b"content-type" and b"text/event-stream" in value
                for name, value in message.get("headers", ())
            )
        elif message["type"] == "http.response.body":
            self._chunks += 1
            self._over = not message.get("more_body", False)
        await self._send(message)

    @property
    def _can_be_cut(self) -> bool:
        return self._streams or not self._started

    async def cut(self) -> None:
        """Sends the one terminal event, unless the answer is over already."""
        if self._over or self._cut or not self._can_be_cut:
            return
        self._cut = True
        if not self._started:
            await self._middleware._send_error(
                self._dialect, self._exchange.why, self._send
            )
        else:
            event = self._dialect.event_bytes(self._exchange.why, self._chunks)
            await self._send({"type": "http.response.body", "body": event})
