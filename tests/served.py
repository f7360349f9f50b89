"""A stub engine behind vLLM's own launcher and uvicorn, in the test's process.

    async with served(core, engine) as server:
        answer = await server.client.post("/v1/tokens")

What is real: the launcher, the plugin's layer around the routes, HTTP over a socket,
vLLM's client of the engine. What is not: the core, and the one route that asks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
from fastapi import FastAPI
from starlette.responses import StreamingResponse
from vllm.entrypoints.launchers import launcher
from vllm.entrypoints.serve.instrumentator import metrics
from vllm.v1.engine.async_llm import AsyncLLM

from tests.stub_core import ENDLESS, generate

__all__ = ["TOKENS", "Served", "said", "served", "signalled"]

TOKENS = "/v1/tokens"
"""Streams a token, and the last one when the core says so."""

SECONDS = 20.0


class Served:
    """One server.

    Attributes:
        app: The application.
        client: A client of it.
        serving: Is over when the server is, with its exit.
    """

    def __init__(self, app: FastAPI, sock: socket.socket, options: Any) -> None:
        host, port = sock.getsockname()
        self.app = app
        self.client = httpx.AsyncClient(
            base_url=f"http://{host}:{port}", timeout=SECONDS
        )
        self.serving = asyncio.create_task(self._serve(sock, host, port, options))

    async def _serve(self, sock: Any, host: str, port: int, options: Any) -> None:
        closing = await launcher.serve_http(
            self.app, sock, host=host, port=port, log_level="warning", **options
        )
        await closing

    async def stream(self) -> tuple[asyncio.Task[bytes], asyncio.Event]:
        """A request that runs on: its whole answer, once its first token is there."""
        flows = asyncio.Event()

        async def run() -> bytes:
            body = b""
            async with self.client.stream("POST", TOKENS) as answer:
                async for chunk in answer.aiter_raw():
                    body += chunk
                    flows.set()
            return body

        task = asyncio.create_task(run())
        await asyncio.wait_for(flows.wait(), SECONDS)
        return task, flows

    def stop(self) -> None:
        """The first signal."""
        signal.raise_signal(signal.SIGTERM)

    async def over(self) -> None:
        """Returns when the server has stopped."""
        await asyncio.wait_for(self.serving, SECONDS)


def _application(engine: AsyncLLM) -> FastAPI:
    app = FastAPI()
    app.state.engine_client = engine
    app.state.args = SimpleNamespace(api_key=None)
    metrics.attach_router(app)
    numbers = iter(range(10**9))

    @app.post(TOKENS)
    async def tokens() -> StreamingResponse:
        async def events() -> AsyncIterator[str]:
            async for _ in generate(engine, f"r{next(numbers)}", ENDLESS):
                yield "data: token\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    return app


@contextlib.contextmanager
def said(text: str) -> Iterator[asyncio.Event]:
    """An event for the moment when the package logs a line with ``text`` in it."""
    event = asyncio.Event()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                event.set()

    logger, ear = logging.getLogger("vllm.ashutdown"), Ear(logging.INFO)
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(ear)
    try:
        yield event
    finally:
        logger.removeHandler(ear)
        logger.setLevel(before)


async def signalled(server: Served) -> None:
    """A stop has begun, by a signal."""
    with said("admission done") as event:
        server.stop()
        await asyncio.wait_for(event.wait(), SECONDS)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.asynccontextmanager
async def served(
    engine: AsyncLLM, *plugins: Any, api_key: list[str] | None = None, **options: Any
) -> AsyncIterator[Served]:
    """Serves ``engine``, with the routes of ``plugins``; stops it in the end."""
    app = _application(engine)
    app.state.args.api_key = api_key
    for plugin in plugins:
        plugin.attach_router(app)
    with _own_signals(), socket.create_server(("127.0.0.1", 0)) as sock:
        server = Served(app, sock, options)
        try:
            async with server.client:
                answer = None
                while answer is None or answer.status_code >= 500:
                    answer = await server.client.get("/openapi.json")
                yield server
        finally:
            if not server.serving.done():
                server.stop()
            await asyncio.gather(server.serving, return_exceptions=True)
