"""A signal to one child alone stops the whole server, in order."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.clients import WHOLE, Clients
from tests.pace import tokens_for
from tests.server import Server
from tests.tiny_model import counts, numbers
from vllm_ashutdown.core.mode import Mode

pytestmark = pytest.mark.real

STREAMS = 8
TOKENS = tokens_for(2)


@pytest.mark.parametrize("kind", ["EngineCore", "Worker"])
def test_the_server_drains_and_says_who_was_signalled(
    serve: Callable[..., Server], kind: str
) -> None:
    server = serve("--shutdown-timeout", "30")
    (child,) = server.processes_by_kind()[kind]
    with Clients(server.address) as clients:
        calls = [
            clients.raw_stream("/v1/completions", start=100 * at, tokens=TOKENS)
            for at in range(STREAMS)
        ]
        server.brake.pull()
        with clients.flowing(*calls) as answers:
            server.signal_process(child, signal.SIGTERM)
            server.brake.release()
            end = server.wait(45)

    assert [answer.end for answer in answers] == [WHOLE] * STREAMS
    for answer in answers:
        assert counts(answer.text)
        assert len(numbers(answer.text)) == TOKENS
    assert server.faults(end) == []
    assert "EngineDeadError" not in server.log

    said = [
        line.text
        for line in server.lines
        if kind in line.text and f"pid {child.pid}) received SIGTERM" in line.text
    ]
    assert len(said) == 1

    report = server.report
    assert kind in report.trigger.detail
    assert (report.mode, report.final_mode) == (Mode.DRAIN, Mode.DRAIN)
    assert report.clean
    assert report.requests.completed == STREAMS
