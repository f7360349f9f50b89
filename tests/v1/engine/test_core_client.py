"""What is taken away of the connection to a core, in any release's shape."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import zmq
import zmq.asyncio

from vllm_ashutdown.adapters import core_client


@pytest.mark.parametrize("kind", [zmq.Context, zmq.asyncio.Context])
@pytest.mark.parametrize("name", ["output_socket", "scale_rcv_socket", "of_tomorrow"])
async def test_a_context_waits_for_a_socket_of_any_name_and_goes_without(kind, name):
    context = kind()
    socket = context.socket(zmq.PAIR)
    resources = SimpleNamespace(ctx=context, input_socket=None, **{name: socket})
    client = SimpleNamespace(resources=resources)
    core_client.close_context(client)
    assert not context.closed, "it would have waited for the socket for ever"
    socket.close(0)
    core_client.close_context(client)
    assert context.closed


def test_a_client_whose_making_has_failed_has_none():
    core_client.close_context(None)
    core_client.close_context(SimpleNamespace())
