"""A process that left cleanly is never taken for alive by a second thread."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

import pytest

from vllm_ashutdown.tree.reaping import reap_in_turn

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def seen_alive(monkeypatch: pytest.MonkeyPatch, *, in_turn: bool) -> bool:
    """Whether a second thread sees a process alive that the first has reaped.

    The first is held at the one moment that counts: waitpid has given it the exit
    code, and it has not yet got round to writing it down.
    """
    process = multiprocessing.get_context("fork").Process(target=lambda: None)
    process.start()
    if in_turn:
        reap_in_turn(process)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    reaped, looked = threading.Event(), threading.Event()
    waitpid = os.waitpid

    def held(pid: int, flag: int) -> Any:
        found = waitpid(pid, flag)
        reaped.set()
        looked.wait(0.3)
        return found

    monkeypatch.setattr(os, "waitpid", held)
    monitor = threading.Thread(target=lambda: process.exitcode)
    monitor.start()
    reaped.wait()
    monkeypatch.setattr(os, "waitpid", waitpid)
    alive = process.is_alive()
    looked.set()
    monitor.join()
    assert process.exitcode == 0
    return alive


def test_multiprocessing_alone_sees_it_alive(monkeypatch):
    assert seen_alive(monkeypatch, in_turn=False)


def test_in_turn_nobody_does(monkeypatch):
    assert not seen_alive(monkeypatch, in_turn=True)


@pytest.mark.parametrize("timeout", [None, 5])
def test_it_can_still_be_joined_and_looked_at_while_someone_joins(timeout):
    context = multiprocessing.get_context("fork")
    go = context.Event()
    process = context.Process(target=go.wait)
    process.start()
    reap_in_turn(process)
    joiner = threading.Thread(target=process.join, args=(timeout,))
    joiner.start()
    assert process.is_alive()  # does not wait for the joiner
    go.set()
    joiner.join(10)
    assert not joiner.is_alive()
    assert process.exitcode == 0


def test_a_look_at_one_that_is_closed_meanwhile_finds_nothing():
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    reap_in_turn(process)
    process.join()
    poll = process._popen.poll
    process.close()  # on another thread, say, while this one waits for the lock
    assert poll() is None
