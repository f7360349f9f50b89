"""The gRPC server's stop, with real gRPC, vLLM's real engine client and a stub core.

vLLM's own launcher needs a package that its ``grpc`` extra brings. What is here makes
servicer and server, and stops them, as that launcher does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tests.stub_core import ENDLESS, generate, stub_engine
from vllm_ashutdown.adapters.grpc_server import make_grpc, make_vllm_engine_servicer
from vllm_ashutdown.errors import ENDED, REFUSED, EngineShutdownError

METHOD = "/vllm.grpc.engine.VllmEngine/Generate"


class Servicer:
    """Answers with a byte a token; an error's text goes with the status."""

    def __init__(self, engine: Any, start_time: float) -> None:
        self.engine = engine

    async def generate(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        name, tokens = request.decode().split()
        try:
            async for _ in generate(self.engine, name, int(tokens)):
                yield b"."
        except EngineShutdownError as error:
            # As the package does with an error of vLLM's that is a 503.
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))


@contextlib.asynccontextmanager
async def serving(engine: Any, *, ours: bool = True) -> AsyncIterator[Any]:
    """A server on ``engine``, and what calls it."""
    make, package = Servicer, grpc
    if ours:
        make, package = make_vllm_engine_servicer(Servicer), make_grpc(grpc)
    servicer = make(engine, 0.0)
    server = package.aio.server()
    handler = package.unary_stream_rpc_method_handler(servicer.generate)
    service, _, method = METHOD.lstrip("/").partition("/")
    server.add_generic_rpc_handlers(
        [package.method_handlers_generic_handler(service, {method: handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield SimpleNamespace(server=server, call=channel.unary_stream(METHOD))
    await server.stop(None) if not ours else None


async def read(stream: Any, count: int) -> None:
    for _ in range(count):
        assert await stream.read() == b"."


async def status(stream: Any) -> tuple[str, str]:
    return (await stream.code()).name, await stream.details()


async def test_an_abort_ends_calls_with_a_status_that_can_be_retried():
    with stub_engine() as (engine, _):
        async with serving(engine) as it:
            stream = it.call(f"one {ENDLESS}".encode())
            await read(stream, 1)
            await asyncio.wait_for(it.server.stop(grace=5.0), 10)
            assert await status(stream) == ("UNAVAILABLE", ENDED)
        assert engine.errored, "the engine is stopped too"


async def test_a_drain_lets_calls_run_on_and_refuses_new_ones():
    with stub_engine(shutdown_timeout=30) as (engine, core):
        async with serving(engine) as it:
            stream = it.call(f"one {ENDLESS}".encode())
            await read(stream, 1)
            stopping = asyncio.create_task(it.server.stop(grace=0.01))
            late = it.call(b"two 3")
            assert await status(late) == ("UNAVAILABLE", REFUSED)
            assert not stopping.done()
            core.finish_all()
            await read(stream, 1)
            assert await status(stream) == ("OK", "")
            await asyncio.wait_for(stopping, 10)


async def test_without_the_seam_no_drain_is_kept():
    with stub_engine(shutdown_timeout=30) as (engine, _):
        async with serving(engine, ours=False) as it:
            stream = it.call(f"one {ENDLESS}".encode())
            await read(stream, 1)
            await it.server.stop(grace=0.01)
            code, details = await status(stream)
            assert (code, ENDED in details) == ("UNAVAILABLE", False)


async def test_the_second_signal_aborts_the_drain():
    with stub_engine(shutdown_timeout=30) as (engine, _):
        async with serving(engine) as it:
            stream = it.call(f"one {ENDLESS}".encode())
            await read(stream, 1)
            # vLLM's own handler has taken the first, and stops the server.
            stopping = asyncio.create_task(it.server.stop(grace=5.0))
            late = it.call(b"two 3")
            assert await status(late) == ("UNAVAILABLE", REFUSED)
            os.kill(os.getpid(), signal.SIGTERM)
            assert await status(stream) == ("UNAVAILABLE", ENDED)
            await asyncio.wait_for(stopping, 10)


@pytest.mark.parametrize("engine", [None, object()])
async def test_a_server_of_something_else_keeps_its_own_stop(engine):
    package = make_grpc(grpc)
    if engine is not None:
        make_vllm_engine_servicer(Servicer)(engine, 0.0)
    server = package.aio.server()
    assert "stop" not in vars(server)
    assert package.StatusCode is grpc.StatusCode
    assert package.aio.insecure_channel is grpc.aio.insecure_channel
