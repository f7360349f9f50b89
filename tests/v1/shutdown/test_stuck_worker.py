"""A worker that cannot leave does not keep its server."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests import pace, resources
from tests.clients import TYPED, Clients
from tests.server import Server
from tests.tiny_model import counts
from tests.v1.shutdown.bystander import WITH_A_BYSTANDER, bystander_of

pytestmark = pytest.mark.real

STREAMS = 8
TEARDOWN_SECONDS = 4
# The budget holds to the letter; this is for what comes behind it, the process's exit.
EXIT_SECONDS = TEARDOWN_SECONDS + 1.5


@pytest.mark.parametrize(
    "stuck", ["in SIGSTOP", pytest.param("in its cleanup", marks=pytest.mark.matrix)]
)
def test_a_stuck_worker_is_killed_in_time_and_named(
    serve: Callable[..., Server], figure: Callable[[str, float], None], stuck: str
) -> None:
    server = serve(
        *("--shutdown-timeout", "0"),
        command=WITH_A_BYSTANDER,
        environment={
            "VLLM_ASHUTDOWN_TEARDOWN_SECONDS": str(TEARDOWN_SECONDS),
            pace.HANGS: str(int(stuck == "in its cleanup")),
        },
    )
    bystander = bystander_of(server)
    (worker,) = server.processes_by_kind()["Worker"]
    with (
        Clients(server.address) as clients,
        clients.flowing(
            *(
                clients.raw_stream("/v1/completions", start=100 * at)
                for at in range(STREAMS)
            )
        ) as answers,
    ):
        if stuck == "in SIGSTOP":
            worker.suspend()
        server.signal(signal.SIGTERM)
        end = server.wait(20)
        _, left = server.gone_within(5)

    figure("from signal to exit", end.seconds)
    assert end.code == 0
    assert end.seconds < EXIT_SECONDS
    assert left == []
    assert resources.is_alive(bystander), "it killed a process that was not its own"
    # The streams do not need the worker to be told.
    assert [answer.end for answer in answers] == [TYPED] * STREAMS
    assert all(counts(answer.text) for answer in answers)

    report = server.report
    killed = {one.pid: one.name for one in report.processes if one.killed}
    assert worker.pid in killed
    assert "Worker" in killed[worker.pid]
    assert not report.clean
    assert report.leftovers == ()
