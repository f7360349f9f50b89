"""What systemd hears of a stop, on a real socket and in order; it delays no stop."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_ashutdown.core.budget import Budget
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Phase
from vllm_ashutdown.core.stop import Stop
from vllm_ashutdown.core.trigger import Trigger
from vllm_ashutdown.telling.notify import (
    LONGEST_SECONDS,
    MARGIN_SECONDS,
    VARIABLE,
    tell_manager,
)

names = itertools.count()


class Manager:
    """A service manager that listens."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))
        self._socket.setblocking(False)

    def heard(self) -> list[list[str]]:
        """The messages so far; a datagram is there as soon as it is sent."""
        messages = []
        with contextlib.suppress(BlockingIOError):
            while True:
                messages.append(self._socket.recv(4096).decode().split("\n"))
        return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path: Path, monkeypatch) -> Iterator[Manager]:
    path = str(tmp_path / "notify")
    if request.param == "abstract":
        path = f"@vllm-ashutdown-test-{os.getpid()}-{next(names)}"
    one = Manager(path)
    monkeypatch.setenv(VARIABLE, path)
    yield one
    one.close()


def a_stop(drain: float = 300.0, why: str = "SIGTERM") -> Stop:
    return Stop(Mode.for_drain(drain), Budget.arm(drain, 10), Trigger.call(why))


def asked(messages: list[list[str]]) -> list[float]:
    """The seconds that were asked for."""
    prefix = "EXTEND_TIMEOUT_USEC="
    return [
        int(line.removeprefix(prefix)) / 1e6
        for message in messages
        for line in message
        if line.startswith(prefix)
    ]


def test_it_hears_all_of_a_stop_in_order(manager):
    stop = a_stop()
    tell_manager(stop)
    stop.do(Phase.ANNOUNCE, lambda: None)
    stop.enter(Phase.DRAIN)
    stop.raise_to(Mode.ABORT, Trigger.call("a second signal"))
    stop.finish()
    stop.conclude(stop.outcome.result())
    first, *rest = manager.heard()
    assert first[0] == "STOPPING=1"
    assert first[1].startswith("EXTEND_TIMEOUT_USEC=")
    assert first[2] == "STATUS=stopping: call SIGTERM, mode drain"
    assert rest == [
        ["STATUS=stopping: announce, 310 s left"],
        ["STATUS=stopping: drain, 310 s left"],
        ["STATUS=stopping: abort in drain, 10 s left"],
        [f"STATUS=stopped: {stop.outcome.result().summary}"],
    ]


def test_the_first_message_asks_for_the_whole_budget_and_more(manager):
    tell_manager(a_stop())
    (seconds,) = asked(manager.heard())
    assert 310 + MARGIN_SECONDS - 1 < seconds <= 310 + MARGIN_SECONDS


def test_a_drain_without_a_limit_asks_for_what_can_be_said(manager):
    tell_manager(a_stop(float("inf")))
    assert asked(manager.heard()) == [LONGEST_SECONDS]


def test_a_name_with_a_line_in_it_says_nothing_else(manager):
    tell_manager(a_stop(why="a\nMAINPID=1"))
    assert all("MAINPID=1" not in message for message in manager.heard())


@pytest.mark.parametrize("text", [None, ""])
def test_without_a_manager_nobody_is_told(monkeypatch, log, text):
    monkeypatch.delenv(VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(VARIABLE, text)
    stop = a_stop()
    tell_manager(stop)
    assert stop.observers == []
    assert log.records == []


def whole(stop: Stop) -> float:
    """The seconds that a stop takes with somebody told."""
    began = time.monotonic()
    tell_manager(stop)
    for phase in Phase:
        stop.do(phase, lambda: None)
    stop.finish()
    stop.conclude(stop.outcome.result())
    return time.monotonic() - began


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in log.records if one.levelname == "WARNING"]


@pytest.mark.parametrize(
    "address", ["/no/such/socket", "@nobody-is-here", "vsock:2:1", "relative", "/", "@"]
)
def test_a_manager_that_is_not_there_is_one_warning(monkeypatch, log, address):
    monkeypatch.setenv(VARIABLE, address)
    whole(a_stop())
    (warning,) = warnings(log)
    assert f"{VARIABLE}={address}: " in warning
    assert "TimeoutStopSec" in warning


def test_a_manager_that_does_not_read_delays_nothing(manager, log):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.setblocking(False)
        other.connect(manager.address.replace("@", "\0", 1))
        with contextlib.suppress(BlockingIOError):
            while True:
                other.send(b"STATUS=full")
        assert whole(a_stop()) < 5
    assert len(warnings(log)) == 1


def test_a_stop_leaves_no_descriptor_open(manager):
    before = sorted(Path("/proc/self/fd").iterdir())
    whole(a_stop())
    assert sorted(Path("/proc/self/fd").iterdir()) == before
