"""A middleware with a fault: ``GET /hold`` holds the event loop in native code."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

HELD = "from here on the loop is held"

MIDDLEWARE = f"{__name__}.Holding"
"""For vLLM's ``--middleware``."""


class Holding:
    """Around the application."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") == "/hold":
            print(HELD, file=sys.stderr, flush=True)
            mutex = ctypes.create_string_buffer(64)
            for _ in range(2):  # the second time it waits for itself
                ctypes.CDLL(None).pthread_mutex_lock(mutex)
        await self.app(scope, receive, send)
