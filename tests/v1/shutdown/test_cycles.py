"""Started and stopped again and again at one address, a server leaves no trace."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests import resources
from tests.clients import TYPED, Clients
from tests.server import Server

pytestmark = [pytest.mark.real, pytest.mark.matrix, pytest.mark.timeout(3000)]

CYCLES = 20
STREAMS = 8


def test_twenty_cycles_on_one_port_leave_nothing(
    tmp_path: Path, figure: Callable[[str, float], None]
) -> None:
    port = resources.free_port()
    seconds = []
    memory, descriptors = resources.memory_names(), _descriptors()
    children = set(psutil.Process().children(recursive=True))
    for number in range(CYCLES):
        directory = tmp_path / str(number)
        directory.mkdir()
        with ExitStack() as stack:
            server = stack.enter_context(
                Server(directory, "--shutdown-timeout", "0", port=port)
            )
            clients = stack.enter_context(Clients(server.address))
            calls = [
                clients.raw_stream("/v1/completions", start=100 * at)
                for at in range(STREAMS)
            ]
            with clients.flowing(*calls) as answers:
                server.signal(signal.SIGTERM)
                end = server.wait(15)
            assert [answer.end for answer in answers] == [TYPED] * STREAMS
            assert server.faults(end) == [], number
            assert server.report.clean
        seconds.append(end.seconds)
        assert set(psutil.Process().children(recursive=True)) == children
        assert resources.memory_names() - memory == set(), number
        assert resources.port_is_free(port)
    # Of the program that starts them: what it needs for a server goes with it.
    assert _descriptors() <= descriptors + 2
    figure("from signal to exit, median", sorted(seconds)[CYCLES // 2])
    figure("from signal to exit, worst", max(seconds))


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
