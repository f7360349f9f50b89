"""A signal to the whole process group is a signal to the server, and no more."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.clients import WHOLE, Clients
from tests.pace import tokens_for
from tests.server import Server
from tests.tiny_model import counts, numbers
from tests.topologies import TOPOLOGIES
from vllm_ashutdown.core.mode import Mode

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

STREAMS = 8
TOKENS = tokens_for(2)


@pytest.mark.parametrize(
    ("number", "topology"),
    [
        (signal.SIGINT, "one"),
        (signal.SIGTERM, "tp2"),
        pytest.param(signal.SIGINT, "tp2", marks=pytest.mark.matrix),
        pytest.param(signal.SIGTERM, "one", marks=pytest.mark.matrix),
    ],
)
def test_streams_come_to_their_end_when_the_group_is_signalled(
    serve: Callable[..., Server], topology: str, number: signal.Signals
) -> None:
    server = serve("--shutdown-timeout", "30", topology=TOPOLOGIES[topology])
    with Clients(server.address) as clients:
        calls = [
            clients.raw_stream("/v1/completions", start=100 * at, tokens=TOKENS)
            for at in range(STREAMS)
        ]
        server.brake.pull()
        with clients.flowing(*calls) as answers:
            server.signal_group(number)
            server.brake.release()
            end = server.wait(45)

    assert [answer.end for answer in answers] == [WHOLE] * STREAMS
    for answer in answers:
        assert counts(answer.text)
        assert len(numbers(answer.text)) == TOKENS
    assert server.faults(end) == []

    report = server.report
    # Whichever process was the first to say so.
    assert report.trigger.detail.startswith(number.name)
    # One signal, however many processes it reached.
    assert (report.mode, report.final_mode) == (Mode.DRAIN, Mode.DRAIN)
    assert report.clean
    assert report.requests.completed == STREAMS
