"""When one process is killed the others go, and nobody is told that all was well."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests import resources
from tests.clients import CUT, TYPED, WHOLE, Answer, Clients
from tests.server import Server
from tests.tiny_model import counts
from tests.topologies import TOPOLOGIES

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

STREAMS = 8
TOKENS = 300
# Promised is 1 s; here clients, server and test share the machine.
GONE_SECONDS = 2.0


@pytest.mark.parametrize(
    ("topology", "kind"),
    [
        ("one", "APIServer"),
        pytest.param("one", "EngineCore", marks=pytest.mark.matrix),
        ("one", "Worker"),
        pytest.param("api2", "launcher", marks=pytest.mark.matrix),
        pytest.param("api2", "APIServer", marks=pytest.mark.matrix),
        pytest.param("dp2", "Coordinator", marks=pytest.mark.matrix),
    ],
)
def test_the_others_are_gone_at_once(
    serve: Callable[..., Server],
    figure: Callable[[str, float], None],
    topology: str,
    kind: str,
) -> None:
    server = serve("--shutdown-timeout", "30", topology=TOPOLOGIES[topology])
    victim = server.processes_by_kind()[kind][0]
    with (
        Clients(server.address) as clients,
        clients.flowing(
            *(
                clients.raw_stream("/v1/completions", start=100 * at)
                for at in range(STREAMS)
            )
        ) as answers,
    ):
        server.signal_process(victim, signal.SIGKILL)
        seconds, left = server.gone_within(15)
        end = server.wait(5)

    figure("from SIGKILL to the end of the last process", seconds)
    assert left == []
    assert seconds < GONE_SECONDS
    if victim.pid == server.process.pid:
        assert end.code == -signal.SIGKILL
    else:
        assert end.code not in (0, None)
    if kind in ("EngineCore", "Worker"):  # who could tell the clients still lives
        assert [answer.end for answer in answers] == [TYPED] * STREAMS
    assert [answer.end for answer in answers if not _is_told(answer)] == []
    assert all(counts(answer.text) for answer in answers if answer.text)
    assert resources.port_is_free(server.address.port)


@pytest.mark.matrix
def test_nobody_needs_the_resource_tracker(serve: Callable[..., Server]) -> None:
    # Python's own: it unlinks what a process that is killed has left.
    server = serve("--shutdown-timeout", "30")
    (tracker,) = server.processes_by_kind()["resource_tracker"]
    with (
        Clients(server.address) as clients,
        clients.flowing(
            *(
                clients.raw_stream("/v1/completions", start=100 * at, tokens=TOKENS)
                for at in range(STREAMS)
            )
        ) as answers,
    ):
        server.signal_process(tracker, signal.SIGKILL)
        server.signalled_at.clear()
        server.signal(signal.SIGTERM)
        end = server.wait(60)
    assert server.faults(end) == []
    assert [answer.end for answer in answers] == [WHOLE] * STREAMS
    assert server.report.clean


def _is_told(answer: Answer) -> bool:
    """Whether this stream ended with an error that its client cannot overlook."""
    return answer.end in (TYPED, CUT) or isinstance(answer.error, ConnectionError)
