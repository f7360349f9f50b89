"""The floor: all that is killed is awaited, and nothing else is touched."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from benchmarks import floor
from benchmarks.floor import kill

WAITS = "import sys; print(flush=True); sys.stdin.read()"


@pytest.fixture
def processes():
    begun = [
        subprocess.Popen(
            [sys.executable, "-c", WAITS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(3)
    ]
    for one in begun:
        assert one.stdout is not None
        one.stdout.readline()
    yield begun
    for one in begun:
        one.kill()
        one.communicate()


def test_all_of_them_end_and_no_other(processes):
    *ours, other = processes
    found = kill([psutil.Process(one.pid) for one in ours])
    assert (found.processes, found.survivors) == (2, 0)
    assert found.resident > 1 << 20
    assert 0 < found.seconds < floor.PATIENCE
    assert [one.wait() for one in ours] == [-9, -9]
    assert other.poll() is None


def test_one_that_is_gone_already_is_not_waited_for(processes):
    gone, living, _ = processes
    known = [psutil.Process(one.pid) for one in (gone, living)]
    gone.kill()
    gone.wait()
    found = kill(known)
    assert (found.processes, found.survivors) == (1, 0)


def test_one_that_does_not_end_is_told(processes, monkeypatch):
    monkeypatch.setattr(floor, "pidfd_send_signal", lambda *_: None)
    monkeypatch.setattr(floor, "PATIENCE", 0.05)
    found = kill([psutil.Process(one.pid) for one in processes])
    assert found.survivors == 3
