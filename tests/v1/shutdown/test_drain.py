"""With a drain time what is in flight runs on, and what comes too late is refused."""

from __future__ import annotations

import signal
from collections.abc import Callable

import openai
import pytest

from tests.clients import WHOLE, Clients
from tests.pace import tokens_for
from tests.server import Server
from tests.tiny_model import counts, numbers
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Outcome, Phase
from vllm_ashutdown.telling.metrics import KINDS

pytestmark = pytest.mark.real

COMPLETIONS = "/v1/completions"
STREAMS = 8
# Two seconds at the least, and about twice that with what the model computes: the
# brake makes the drain outlast what is asked of the server meanwhile.
TOKENS = tokens_for(2)

# Promised are 50 ms and 0.3 s; here clients, server and test share the machine.
UNHEALTHY_SECONDS = 0.25
EXIT_SECONDS = 1.5


def test_streams_run_to_their_end_and_late_requests_are_refused(
    serve: Callable[..., Server], figure: Callable[[str, float], None]
) -> None:
    server = serve("--shutdown-timeout", "30")
    with Clients(server.address) as clients:
        calls = [
            clients.raw_stream(COMPLETIONS, start=100 * number, tokens=TOKENS)
            for number in range(STREAMS)
        ]
        with clients.in_flight(*calls) as undisturbed:
            pass

        server.brake.pull()
        unhealthy = clients.until_unhealthy()
        with clients.flowing(*calls) as answers:
            signalled = server.signal(signal.SIGTERM)
            turned_at = unhealthy.result(10)
            with clients.in_flight(
                clients.raw(COMPLETIONS), clients.completion()
            ) as late:
                pass
            statuses = [server.get(path)[0] for path in ("/health", "/metrics")]
            shown = server.shown()
            in_the_drain = not any(answer.over.is_set() for answer in answers)
            server.brake.release()
            end = server.wait(60)

    last_byte_at = max(answer.last_byte_at for answer in answers)
    exited = end.at - last_byte_at
    figure("from signal to /health 503", turned_at - signalled)
    figure("from last byte to exit", exited)
    assert server.faults(end) == []
    assert exited < EXIT_SECONDS

    # Nothing is lost, doubled, or other than it would have been.
    assert [answer.end for answer in answers] == [WHOLE] * STREAMS
    for answer, same in zip(answers, undisturbed, strict=True):
        assert answer.text == same.text
        assert counts(answer.text)
        assert len(numbers(answer.text)) == TOKENS

    assert in_the_drain, "the streams were too short to prove anything"
    assert statuses == [503, 200]
    assert turned_at - signalled < UNHEALTHY_SECONDS
    refused = late[1].error
    assert isinstance(refused, openai.InternalServerError)
    assert late[0].status == refused.status_code == 503
    for headers in (late[0].headers, refused.response.headers):
        assert (headers["retry-after"], headers["connection"]) == ("1", "close")

    report = server.report
    assert (report.mode, report.final_mode) == (Mode.DRAIN, Mode.DRAIN)
    assert report.clean
    assert {record.outcome for record in report.phases} == {Outcome.DONE}
    assert [record.phase for record in report.phases] == list(Phase)
    assert report.requests.completed == STREAMS
    assert report.requests.aborted == 0
    # The two late ones. Who asks for /health is no request that was turned away.
    assert report.requests.refused == 2

    # What was read in the drain is what the report says of the time until then.
    assert shown['phase{phase="drain"}'] == 1
    assert shown["requests_in_flight"] == STREAMS
    assert 0 < shown["remaining_seconds"] <= 40
    assert [shown[f'requests_total{{kind="{kind}"}}'] for kind in KINDS] == [0, 0, 2]
    for record in report.phases:
        over = record.phase in (Phase.ANNOUNCE, Phase.ADMISSION)
        name = f'phase_seconds{{phase="{record.phase}"}}'
        assert shown.get(name) == (record.spent if over else None)
