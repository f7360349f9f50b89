"""A start that is interrupted, or fails, leaves nothing, and says why it ended."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests import resources
from tests.server import Server
from tests.topologies import TOPOLOGIES

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

SECONDS = 3.0
"""Promised are 2; here others use the machine."""

CORE_STARTS = "Initializing a V1 LLM engine"
WEIGHTS_ARE_READ = "Starting to load model"
IN_BETWEEN = "Starting vLLM server on"

more = pytest.mark.matrix


@pytest.mark.parametrize(
    ("topology", "line"),
    [
        ("one", WEIGHTS_ARE_READ),
        pytest.param("one", CORE_STARTS, marks=more),
        pytest.param("one", IN_BETWEEN, marks=more),
        pytest.param("tp2", WEIGHTS_ARE_READ, marks=more),
        pytest.param("dp2", WEIGHTS_ARE_READ, marks=more),
        pytest.param("api2", WEIGHTS_ARE_READ, marks=more),
        pytest.param("dp2_api2", CORE_STARTS, marks=more),
    ],
)
def test_a_signal_ends_the_start(
    serve: Callable[..., Server],
    figure: Callable[[str, float], None],
    topology: str,
    line: str,
) -> None:
    server = serve(topology=TOPOLOGIES[topology], until_ready=False)
    assert server.wait_for(line, 120)
    server.watch.look()
    server.signal(signal.SIGTERM)
    end = server.wait(15)

    figure("from signal to exit", end.seconds)
    assert server.faults(end) == []
    assert end.seconds < SECONDS
    said = [one.text for one in server.lines if "the start ends here" in one.text]
    if line != IN_BETWEEN:  # where the server itself may have taken over
        assert len(said) == 1
        assert "SIGTERM while" in said[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@more
def test_a_signal_to_its_core_alone_ends_the_start(
    serve: Callable[..., Server], number: signal.Signals
) -> None:
    server = serve(until_ready=False)
    assert server.wait_for(IN_BETWEEN, 120)
    server.watch.look()
    (core,) = server.processes_by_kind()["EngineCore"]
    server.signal_process(core, number)
    end = server.wait(15)

    assert server.faults(end) == []
    assert end.seconds < SECONDS
    assert "Traceback" not in server.log


@pytest.mark.parametrize("signals", [2, 3])
@more
def test_a_signal_more_ends_it_sooner_and_leaves_nothing(
    serve: Callable[..., Server], signals: int
) -> None:
    server = serve(until_ready=False)
    assert server.wait_for(WEIGHTS_ARE_READ, 120)
    server.watch.look()
    for _ in range(signals):
        server.signal(signal.SIGTERM)
    end = server.wait(15)
    assert server.faults(end) == []
    assert end.at - server.signalled_at[-1] < SECONDS


FAILURES = {
    "no such tokenizer": (("--tokenizer", "/nowhere/at/all"), "nowhere/at/all"),
    "no such worker": (("--worker-cls", "tests.no_such_worker"), "no_such_worker"),
    "a length beyond the model's": (("--max-model-len", "10000000"), "max_model_len"),
    "no room for one request": (
        ("--num-gpu-blocks-override", "1"),
        "KV cache|block",
    ),
}


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(name, marks=() if name == "no such worker" else more)
        for name in FAILURES
    ],
)
def test_a_start_that_fails_says_why_first_and_leaves_nothing(
    serve: Callable[..., Server], failure: str
) -> None:
    options, cause = FAILURES[failure]
    server = serve(*options, until_ready=False)
    end = server.wait(120)
    assert end.code not in (0, None)
    assert re.search(cause, _first_error(server)), _first_error(server)
    assert server.leftovers() == []


@more
def test_a_model_that_is_not_there(serve: Callable[..., Server]) -> None:
    server = serve(model="/nowhere/at/all", until_ready=False)
    end = server.wait(120)
    assert end.code not in (0, None)
    assert "nowhere/at/all" in _first_error(server), _first_error(server)
    assert server.leftovers() == []


@more
def test_a_port_that_is_taken(serve: Callable[..., Server]) -> None:
    with ExitStack() as stack:
        other = stack.enter_context(socket.socket())
        other.bind(("127.0.0.1", 0))
        other.listen()
        server = serve(port=other.getsockname()[1], until_ready=False)
        end = server.wait(120)
    assert end.code not in (0, None)
    assert "Address already in use" in _first_error(server)
    assert server.leftovers() == []


@more
@pytest.mark.parametrize("kind", ["EngineCore", "Worker"])
def test_a_process_that_is_killed_in_the_start(
    serve: Callable[..., Server], kind: str
) -> None:
    server = serve(until_ready=False)
    assert server.wait_for(WEIGHTS_ARE_READ, 120)
    victim = server.processes_by_kind()[kind][0]
    server.signal_process(victim, signal.SIGKILL)
    end = server.wait(30)
    assert end.code not in (0, None)
    left = [one for one in server.leftovers() if not one.startswith("temporary file")]
    assert left == []
    assert resources.port_is_free(server.address.port)


def _first_error(server: Server) -> str:
    """From the first line that speaks of an error on, as much as a person reads."""
    for number, line in enumerate(server.lines):
        if re.search(r"ERROR|Traceback|[Ee]rror:", line.text):
            return "\n".join(one.text for one in server.lines[number : number + 60])
    return ""
