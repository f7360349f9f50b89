"""A drain has a deadline: what outlasts it gets its terminal event then."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.clients import TYPED, Clients
from tests.server import Server
from tests.tiny_model import counts
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Outcome, Phase

pytestmark = pytest.mark.real

STREAMS = 8
DRAIN_SECONDS = 2
# Promised is an exit before the third second; half of one more for a loaded machine.
EXIT_SECONDS = 3.5


def test_streams_that_outlast_the_drain_are_told_at_its_deadline(
    serve: Callable[..., Server], figure: Callable[[str, float], None]
) -> None:
    server = serve("--shutdown-timeout", str(DRAIN_SECONDS))
    starts = range(0, 100 * STREAMS, 100)
    with (
        Clients(server.address) as clients,
        clients.flowing(
            *(clients.raw_stream("/v1/completions", start=start) for start in starts)
        ) as answers,
    ):
        signalled = server.signal(signal.SIGTERM)
        end = server.wait(20)

    told = [answer.last_byte_at - signalled for answer in answers]
    figure("from signal to the terminal events", max(told))
    figure("from signal to exit", end.seconds)
    assert server.faults(end) == []
    assert [answer.end for answer in answers] == [TYPED] * STREAMS
    assert all(counts(answer.text) for answer in answers)
    assert min(told) > DRAIN_SECONDS - 0.1
    assert max(told) < end.seconds < EXIT_SECONDS

    report = server.report
    assert (report.mode, report.final_mode) == (Mode.DRAIN, Mode.ABORT)
    assert report.clean  # that is what deadlines are for
    outcomes = {record.phase: record.outcome for record in report.phases}
    assert outcomes[Phase.DRAIN] is Outcome.EXPIRED
    assert report.requests.aborted == STREAMS
    assert report.requests.completed == 0
