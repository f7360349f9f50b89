"""A server whose event loop is held cannot stop in order; it does not stay for that."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable

import pytest

from tests.address import HOST
from tests.clients import Clients
from tests.server import Server
from tests.v1.shutdown.holding import HELD, MIDDLEWARE
from vllm_ashutdown import settings
from vllm_ashutdown.exit_code import ExitCode

pytestmark = [pytest.mark.real, pytest.mark.matrix]

TEARDOWN_SECONDS = 3.0
STREAMS = 4


def test_the_watchdog_ends_it_and_all_that_it_has(
    serve: Callable[..., Server], figure: Callable[[str, float], None]
) -> None:
    server = serve(
        *("--middleware", MIDDLEWARE),
        environment={settings.TEARDOWN_SECONDS.name: str(TEARDOWN_SECONDS)},
    )
    calls = ({"start": 100 * number} for number in range(STREAMS))
    with (
        Clients(server.address) as clients,
        clients.flowing(
            *(clients.raw_stream("/v1/completions", **one) for one in calls)
        ),
        socket.create_connection((HOST, server.address.port)) as holder,
    ):
        holder.sendall(b"GET /hold HTTP/1.1\r\nHost: any\r\n\r\n")
        assert server.wait_for(HELD, 10)
        server.signal(signal.SIGTERM)
        end = server.wait(20)
        _, left = server.gone_within(5)

    figure("from signal to exit", end.seconds)
    assert end.code == ExitCode.WATCHDOG
    assert TEARDOWN_SECONDS < end.seconds < TEARDOWN_SECONDS + 2
    assert "the event loop has not answered a signal" in server.log
    assert "holding.py" in server.log, "what held it"
    assert left == []
    assert server.leftovers() == []
