"""A drain that a hook prepares on a real server, and who hears of its stop."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clients import WHOLE, Clients
from tests.pace import tokens_for
from tests.server import Server
from tests.topologies import TOPOLOGIES
from vllm_ashutdown.telling.metrics import KINDS

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from tests.otlp import Receiver

pytestmark = [pytest.mark.real, pytest.mark.matrix]

COMPLETIONS = "/v1/completions"
STREAMS = 4
ASKED = 10
TOKENS = tokens_for(2)

# Promised are 0.2 s; here clients, server and test share the machine.
ANSWER_SECONDS = 1.0


def ask(
    server: Server, method: str, path: str, sent: threading.Semaphore | None = None
) -> tuple[int, dict[str, object], float]:
    """Status, answer, and when it was there."""
    with contextlib.closing(server.address.connection(60)) as connection:
        connection.request(method, path)
        if sent is not None:
            sent.release()
        response = connection.getresponse()
        body, at = response.read(), time.monotonic()
        return response.status, json.loads(body), at


@pytest.mark.parametrize("shape", ["one", "api2"])
def test_a_prepared_drain_leaves_the_signal_nothing_to_wait_for(
    shape: str,
    serve: Callable[..., Server],
    figure: Callable[[str, float], None],
    tmp_path: Path,
) -> None:
    topology = TOPOLOGIES[shape]
    receiver = Receiver(answers=True)
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path = tmp_path / "notify"
    manager.bind(str(path))
    manager.setblocking(False)
    environment = {
        "VLLM_PLUGINS": "ashutdown,ashutdown_drain",
        "NOTIFY_SOCKET": str(path),
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }
    options = ("--shutdown-timeout", "30", "--otlp-traces-endpoint", receiver.endpoint)
    with (
        contextlib.closing(receiver),
        contextlib.closing(manager),
        # By default there are fewer of them than that on a small machine: some would
        # only ask when others have their answer, and that is what would be timed.
        ThreadPoolExecutor(ASKED) as threads,
    ):
        server = serve(*options, environment=environment, topology=topology)
        assert ask(server, "GET", "/drain")[1]["phase"] == "serving"
        with Clients(server.address) as clients:
            calls = [
                clients.raw_stream(COMPLETIONS, start=100 * number, tokens=TOKENS)
                for number in range(STREAMS)
            ]
            server.brake.pull()
            with clients.flowing(*calls) as answers:
                sent = threading.Semaphore(0)
                asked = [
                    threads.submit(ask, server, "POST", "/drain", sent)
                    for _ in range(ASKED)
                ]
                assert all(sent.acquire(timeout=20) for _ in asked)
                assert server.wait_for("drain prepared", 20, topology.api_servers)
                shown = server.shown()
                health = server.get("/health")[0]
                with clients.in_flight(clients.raw(COMPLETIONS)) as late:
                    pass
                waited = not any(one.done() for one in asked)
                server.brake.release()
                drained = [one.result(60) for one in asked]
        last_byte = max(answer.last_byte_at for answer in answers)
        after = max(at for _, _, at in drained) - last_byte
        figure("from last byte to the hook's answer", after)
        shown_then = server.shown()
        server.signal(signal.SIGTERM)
        end = server.wait(60)
        spans = receiver.come()  # before the process has ended, and not behind it
        figure("from signal to exit, drained before", end.seconds)

        assert server.faults(end) == []
        assert [answer.end for answer in answers] == [WHOLE] * STREAMS
        assert waited, "the streams were too short to prove anything"
        assert {(status, view["idle"]) for status, view, _ in drained} == {(200, True)}
        assert after < ANSWER_SECONDS
        assert (health, late[0].status) == (503, 503)
        assert shown['phase{phase="prepare"}'] == topology.api_servers
        assert shown["requests_in_flight"] == STREAMS
        requests = server.report.requests
        assert (requests.completed, requests.aborted) == (STREAMS, 0)
        assert requests.refused == 1
        # Nothing was let in any more: what was read then is what the report says.
        assert shown_then['phase{phase="prepare"}'] == topology.api_servers
        assert shown_then["requests_in_flight"] == 0
        for kind in KINDS:
            counted = shown_then[f'requests_total{{kind="{kind}"}}']
            assert counted == getattr(requests, kind)

        messages = []
        with contextlib.suppress(BlockingIOError):
            while True:
                messages.append(manager.recv(4096).decode())
        assert messages[0].startswith("STOPPING=1\nEXTEND_TIMEOUT_USEC=")
        assert messages[-1].startswith("STATUS=stopped: signal SIGTERM, drain")

        roots = [one for one in spans if one.name == "shutdown"]
        assert len(roots) == topology.api_servers
        for root in roots:
            below = {
                one.name.removeprefix("shutdown.")
                for one in spans
                if one.parent_span_id == root.span_id
            }
            assert below == {str(record.phase) for record in server.report.phases}
