"""However many processes a server has, it stops as one."""

from __future__ import annotations

import signal
from collections.abc import Callable

import openai
import pytest

from tests.clients import TYPED, WHOLE, Clients
from tests.pace import tokens_for
from tests.server import Server
from tests.tiny_model import counts, numbers
from tests.topologies import ONE, TOPOLOGIES, Topology
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Phase
from vllm_ashutdown.telling.metrics import KINDS

pytestmark = [
    pytest.mark.real,
    # Up to eight processes import vLLM on as few cores as there are.
    pytest.mark.timeout(900),
]


def topologies(*each_time: str) -> pytest.MarkDecorator:
    """All but the one that test_abort.py and test_drain.py stop.

    Args:
        each_time: Those that are stopped in each run of the tests. A start takes half
            a minute and more; the others are the matrix's.
    """
    return pytest.mark.parametrize(
        "topology",
        [
            pytest.param(
                topology, id=name, marks=() if name in each_time else pytest.mark.matrix
            )
            for name, topology in TOPOLOGIES.items()
            if topology is not ONE
        ],
    )


STREAMS = 8
STARTS = range(0, 100 * STREAMS, 100)
TOKENS = tokens_for(2)

# Promised are 1 s, and 2 s for more processes; here clients, server and test share
# the machine.
ABORT_SECONDS, LARGE_ABORT_SECONDS = 2.5, 5.0


@topologies("tp2", "api2", "uds")
def test_an_abort_ends_every_stream_and_every_process(
    serve: Callable[..., Server],
    figure: Callable[[str, float], None],
    topology: Topology,
) -> None:
    server = serve("--shutdown-timeout", "0", topology=topology)
    assert _kinds(server) == topology.kinds
    with Clients(server.address) as clients:
        calls = [clients.raw_stream("/v1/completions", start=at) for at in STARTS]
        with clients.flowing(*calls, clients.completion_stream()) as answers:
            server.signal(signal.SIGTERM)
            seconds, left = server.gone_within(15)
            end = server.wait(5)

    figure("from signal to exit", end.seconds)
    figure("from signal to the end of the last process", seconds)
    *raw, by_client = answers
    assert [answer.end for answer in raw] == [TYPED] * STREAMS
    assert all(counts(answer.text) for answer in raw)
    assert isinstance(by_client.error, openai.APIError)
    assert by_client.finish_reason is None
    assert left == []
    assert server.faults(end) == []
    small = topology.processes == ONE.processes
    assert max(seconds, end.seconds) < (ABORT_SECONDS if small else LARGE_ABORT_SECONDS)

    report = server.report
    assert (report.mode, report.final_mode) == (Mode.ABORT, Mode.ABORT)
    assert report.clean
    assert report.requests.aborted == len(answers)


@topologies("api2")
def test_a_drain_lets_every_stream_come_to_its_end(
    serve: Callable[..., Server],
    figure: Callable[[str, float], None],
    topology: Topology,
) -> None:
    server = serve("--shutdown-timeout", "30", topology=topology)
    with Clients(server.address) as clients:
        calls = [
            clients.raw_stream("/v1/completions", start=at, tokens=TOKENS)
            for at in STARTS
        ]
        server.brake.pull()
        with clients.flowing(*calls) as answers:
            server.signal(signal.SIGTERM)
            # Each says so when it drains; whichever is asked then speaks for all.
            assert server.wait_for("admission done", 20, topology.api_servers)
            shown = server.shown()
            in_the_drain = not any(answer.over.is_set() for answer in answers)
            server.brake.release()
            end = server.wait(45)

    figure("from last byte to exit", end.at - max(one.last_byte_at for one in answers))
    assert [answer.end for answer in answers] == [WHOLE] * STREAMS
    for answer in answers:
        assert counts(answer.text)
        assert len(numbers(answer.text)) == TOKENS
    assert server.faults(end) == []

    report = server.report
    assert (report.mode, report.final_mode) == (Mode.DRAIN, Mode.DRAIN)
    assert report.clean
    assert report.requests.completed == STREAMS

    assert in_the_drain, "the streams were too short to prove anything"
    assert shown['phase{phase="drain"}'] == topology.api_servers
    assert shown["requests_in_flight"] == STREAMS
    assert [shown[f'requests_total{{kind="{kind}"}}'] for kind in KINDS] == [0, 0, 0]
    spent = {record.phase: record.spent for record in report.phases}
    for phase in (Phase.ANNOUNCE, Phase.ADMISSION):
        # The report's is of all together, from the first begin to the last end: a sum
        # and a difference, which cost it the last digit.
        longest = shown[f'phase_seconds{{phase="{phase}"}}']
        assert 0 < longest <= spent[phase] + 1e-9


def _kinds(server: Server) -> dict[str, int]:
    found = server.processes_by_kind()
    found.pop("resource_tracker", None)
    return {kind: len(processes) for kind, processes in found.items()}
