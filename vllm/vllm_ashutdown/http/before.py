"""An ASGI layer that does something before one path is read: metrics are brought up."""

from __future__ import annotations

from collections.abc import Callable

from .middleware import ASGIApp, Receive, Scope, Send


class Before:
    """Calls ``work`` before each GET of ``path``."""

    def __init__(self, app: ASGIApp, path: str, work: Callable[[], None]) -> None:
        """Wraps ``app``."""
        self.app = app
        self.path = path
        self.work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        if scope["type"] == "http" and scope["path"].rstrip("/").endswith(self.path):
            self.work()
        await self.app(scope, receive, send)
