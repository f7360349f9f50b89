"""A second signal ends a drain, and a third one whatever cannot leave by itself."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests import resources
from tests.clients import TYPED, Answer, Clients
from tests.server import Server
from tests.tiny_model import counts
from tests.v1.shutdown.bystander import WITH_A_BYSTANDER, bystander_of
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Outcome, Phase

pytestmark = pytest.mark.real

STREAMS = 8
ABORT_SECONDS = 2.0
KILL_SECONDS = 2.0


def test_the_second_signal_aborts(
    serve: Callable[..., Server], figure: Callable[[str, float], None]
) -> None:
    server = serve("--shutdown-timeout", "30")
    with _long_streams(server) as answers:
        server.signal(signal.SIGINT)
        assert server.wait_for("SIGINT received", 5)
        _draining(server, answers)
        second = server.signal(signal.SIGTERM)
        end = server.wait(15)

    figure("from 2nd signal to exit", end.at - second)
    assert server.faults(end) == []
    assert end.at - second < ABORT_SECONDS
    assert [answer.end for answer in answers] == [TYPED] * STREAMS
    assert all(counts(answer.text) for answer in answers)

    report = server.report
    assert report.trigger.detail == "SIGINT"
    assert (report.mode, report.final_mode) == (Mode.DRAIN, Mode.ABORT)
    assert report.clean
    outcomes = {record.phase: record.outcome for record in report.phases}
    assert outcomes[Phase.DRAIN] is Outcome.RAISED
    assert report.requests.aborted == STREAMS


def test_the_third_signal_kills_a_core_that_cannot_leave(
    serve: Callable[..., Server], figure: Callable[[str, float], None]
) -> None:
    server = serve("--shutdown-timeout", "30", command=WITH_A_BYSTANDER)
    bystander = bystander_of(server)
    (core,) = server.processes_by_kind()["EngineCore"]
    with _long_streams(server) as answers:
        core.suspend()
        server.signal(signal.SIGTERM)
        _draining(server, answers)
        second = server.signal(signal.SIGTERM)
        # The streams do not need the core to be told.
        for answer in answers:
            assert answer.over.wait(5)
        # HTTP closes beside the core, which is told by now.
        assert server.wait_for("Application shutdown complete", 5)
        assert server.process.poll() is None
        third = server.signal(signal.SIGTERM)
        end = server.wait(15)

    told = max(answer.last_byte_at for answer in answers) - second
    figure("from 2nd signal to terminal events", told)
    figure("from 3rd signal to exit", end.at - third)
    assert end.code == 0
    # A core that is killed cannot tidy up. Its files lie there until the next start;
    # the resource tracker sees to the shared memory, and says so.
    left = [one for one in server.leftovers() if not one.startswith("temporary file")]
    assert left == []
    assert [line for line in server.error_lines() if "resource_track" not in line] == []
    assert end.at - third < KILL_SECONDS
    assert resources.is_alive(bystander), "it killed a process that was not its own"
    assert [answer.end for answer in answers] == [TYPED] * STREAMS

    report = server.report
    assert (report.mode, report.final_mode) == (Mode.DRAIN, Mode.KILL)
    assert core.pid in {one.pid for one in report.processes}
    assert all(one.killed for one in report.processes)
    assert not report.clean
    assert report.leftovers == ()
    assert report.requests.aborted == STREAMS


@contextmanager
def _long_streams(server: Server) -> Iterator[list[Answer]]:
    starts = range(0, 100 * STREAMS, 100)
    with (
        Clients(server.address) as clients,
        clients.flowing(
            *(clients.raw_stream("/v1/completions", start=start) for start in starts)
        ) as answers,
    ):
        yield answers


def _draining(server: Server, answers: list[Answer]) -> None:
    """Returns once the first signal is at work, with every stream still open."""
    assert server.wait_for("requests in flight", 5)
    assert server.get("/health")[0] == 503
    assert not any(answer.over.is_set() for answer in answers)
