"""vllm.entrypoints.launchers.launcher: the HTTP server awaits the ordered stop.

What does that is imported when there is an engine to serve: a process that loads this
module of vLLM's need not be a server.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def make_serve_http(original: Callable[..., Any]) -> Callable[..., Any]:
    """``serve_http``."""

    @functools.wraps(original)
    async def serve_http(app: Any, *args: Any, **kwargs: Any) -> Any:
        engine = getattr(app.state, "engine_client", None)
        if not hasattr(engine, "ashutdown"):  # a render server, say
            return await original(app, *args, **kwargs)
        from .http_server import HttpServer

        server = HttpServer(app, engine)
        return await server.serve(original(app, *args, **kwargs))

    return serve_http


def make_find_process_using_port(original: Callable[..., Any]) -> Callable[..., Any]:
    """``find_process_using_port``, which vLLM's way out calls on the loop.

    It looks through the open connections of every process of the machine, to
    warn of another user of the port. The only one there can be at that moment
    is this server, which has not closed it yet.
    """

    @functools.wraps(original)
    def find_process_using_port(port: int) -> Any:
        return None

    return find_process_using_port
