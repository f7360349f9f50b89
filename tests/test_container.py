"""A server that is PID 1 of a container, or stands below a small one, stops as ever."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from tests import container
from tests.clients import TYPED, Clients
from tests.server import COMMAND, Server
from tests.stand_in import SHAPES, StandIn
from vllm_ashutdown.core.trigger import TriggerKind

pytestmark = pytest.mark.skipif(
    not container.is_possible(), reason="needs a process namespace of its own"
)

ORPHAN = ("sh", "-c", '(sleep 300 &) ; exec "$@"', "sh")
"""Leaves a process behind that nobody waits for, and becomes the command."""


@pytest.mark.parametrize("init", [False, True], ids=["alone", "below init"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_signal_stops_it_in_order(tmp_path: Path, init: bool, shape: str):
    before = container.command(*ORPHAN, init=init)
    with StandIn(tmp_path, before=before, topology=SHAPES[shape]) as one:
        (orphan,) = [each for each in one.watch.processes if is_the_orphan(each)]
        one.signal(signal.SIGTERM)
        end = one.wait(10)
        assert one.faults(end) == []
        assert end.seconds < 3
        assert (one.report.trigger.kind, one.report.clean) == (TriggerKind.SIGNAL, True)
        assert not orphan.is_running()  # by the kernel, with its PID 1


def is_the_orphan(process: psutil.Process) -> bool:
    return process.cmdline() == ["sleep", "300"]


def test_a_signal_in_the_start_is_not_lost_on_a_pid_1(tmp_path: Path):
    """The kernel gives PID 1 only what it has a handler for, and there is one."""
    before = container.command(init=False)
    with StandIn(
        tmp_path, before=before, topology=SHAPES["dp2"], until_ready=False
    ) as one:
        assert one.wait_for("is up", 20) is not None, one.log  # the first worker
        one.signal(signal.SIGTERM)
        end = one.wait(10)
        assert one.faults(end) == []
        assert end.seconds < 3


@pytest.mark.real
@pytest.mark.matrix
@pytest.mark.parametrize("init", [False, True], ids=["alone", "below init"])
def test_a_real_one(tmp_path: Path, init: bool):
    before = container.command(*ORPHAN, *COMMAND, init=init)
    with (
        Server(tmp_path, "--shutdown-timeout", "0", command=before) as server,
        Clients(server.address) as clients,
    ):
        calls = [clients.raw_stream("/v1/completions") for _ in range(4)]
        with clients.flowing(*calls) as answers:
            server.signal(signal.SIGTERM)
            end = server.wait(15)
        assert server.faults(end) == []
        assert [answer.end for answer in answers] == [TYPED] * 4
        assert server.report.clean
