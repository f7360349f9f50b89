"""What happens to one server is none of the business of the one beside it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.clients import TYPED, WHOLE, Answer, Clients
from tests.server import Server

pytestmark = [pytest.mark.real, pytest.mark.matrix, pytest.mark.timeout(900)]

STREAMS = 4
TOKENS = 50


def test_one_server_is_stopped_and_another_killed_beside_a_third(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        beside = stack.enter_context(_server(tmp_path / "beside"))
        processes = set(beside.watch.processes)

        with _server(tmp_path / "killed") as killed, _streams(killed):
            killed.signal(signal.SIGKILL)
            _, left = killed.gone_within(10)
            assert left == []
        _works(beside)

        with _server(tmp_path / "stopped") as stopped:
            with _streams(stopped) as answers:
                stopped.signal(signal.SIGTERM)
                end = stopped.wait(15)
            assert [answer.end for answer in answers] == [TYPED] * STREAMS
            assert stopped.faults(end) == []
        _works(beside)

        beside.watch.look()
        assert set(beside.watch.processes) == processes
        beside.signal(signal.SIGTERM)
        assert beside.faults(beside.wait(15)) == []


def _server(directory: Path) -> Server:
    directory.mkdir()
    return Server(directory, "--shutdown-timeout", "0")


@contextmanager
def _streams(server: Server) -> Iterator[list[Answer]]:
    with (
        Clients(server.address) as clients,
        clients.flowing(
            *(
                clients.raw_stream("/v1/completions", start=100 * at)
                for at in range(STREAMS)
            )
        ) as answers,
    ):
        yield answers


def _works(server: Server) -> None:
    with (
        Clients(server.address) as clients,
        clients.flowing(
            clients.raw_stream("/v1/completions", start=0, tokens=TOKENS)
        ) as (answer,),
    ):
        assert answer.over.wait(60)
    assert answer.end == WHOLE
