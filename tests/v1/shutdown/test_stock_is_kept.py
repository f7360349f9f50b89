"""Switched off, or over a vLLM that it does not know, the plugin changes nothing."""

from __future__ import annotations

import re
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients import WHOLE, Clients
from tests.server import End, Server
from tests.tiny_model import counts
from vllm_ashutdown.seams.registry import SEAMS

pytestmark = pytest.mark.real

ALTERED = Path(__file__).with_name("serve_altered.py")

STOCKS_OWN = "force killing remaining processes"
"""What stock does with its core on every stop that has no drain time."""


def test_switched_off_it_does_nothing(serve: Callable[..., Server]) -> None:
    server = serve(environment={"VLLM_ASHUTDOWN": "0"})
    end = _serves_and_stops(server)

    assert end.code == 0
    assert STOCKS_OWN in server.log
    assert _of_the_plugin(server) == []
    assert not server.report_path.exists()


def test_over_an_unknown_vllm_each_seam_that_does_not_fit_is_named_once(
    serve: Callable[..., Server],
) -> None:
    server = serve(command=(sys.executable, str(ALTERED)))
    end = _serves_and_stops(server)

    assert end.code == 0
    assert STOCKS_OWN in server.log
    assert not server.report_path.exists()
    skipped = Counter(re.findall(r"seam (\S+) skipped", server.log))
    altered = {"AsyncLLM.shutdown", "MultiprocExecutor._ensure_worker_termination"}
    of_grpc = {"VllmEngineServicer", "grpc"}  # whose module no HTTP server imports
    assert skipped == dict.fromkeys(_with_all_that_need(altered) - of_grpc, 1)
    # Nothing of the plugin beyond that.
    assert all("seam" in line for line in _of_the_plugin(server))


def _serves_and_stops(server: Server) -> End:
    with (
        Clients(server.address) as clients,
        clients.in_flight(clients.raw_stream("/v1/completions", tokens=5)) as answers,
    ):
        pass
    assert answers[0].end == WHOLE
    assert counts(answers[0].text)
    server.signal(signal.SIGTERM)
    return server.wait(15)


def _of_the_plugin(server: Server) -> list[str]:
    """The lines that it wrote; vLLM begins some of its own with the same mark."""
    ours = re.compile(r"\[shutdown\] (seam|announce|admission|drain|end|complete)\b")
    return [line.text for line in server.lines if ours.search(line.text)]


def _with_all_that_need(names: set[str]) -> set[str]:
    found: set[str] = set()
    while names - found:
        found |= names
        names = {seam.name for seam in SEAMS if found & set(seam.needs)}
    return found
