"""One process, and no other that has its pid."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from tests.life import MAIN_THREAD_ENDS
from tests.tree.ear import tell
from vllm_ashutdown.tree import member as member_module
from vllm_ashutdown.tree.member import Member, stat_of

Sleeper = subprocess.Popen[bytes]


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_it_survives_a_message_and_nothing_else_does():
    here = Member.here("me")
    assert Member.parse(here.plain()) == here
    for value in [None, 3, {}, {"pid": 1}, here.plain() | {"pid": float("inf")}]:
        with pytest.raises(ValueError, match=r"not a process|invalid"):
            Member.parse(value)


def test_the_same_pid_with_another_start_is_someone_else(sleeper):
    member = Member.of(sleeper.pid, "sleeper")
    other = structs.replace(member, start=member.start - 1)
    assert member.alive
    assert not other.alive
    assert other.gone_within(0)
    assert not member.gone_within(0)


def test_a_zombie_does_not_live_but_has_a_start(sleeper):
    member = Member.of(sleeper.pid, "sleeper")
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert stat_of(sleeper.pid) == ("Z", member.start)
    assert not member.alive
    assert member.gone_within(0)


def test_it_lives_until_its_last_thread_is_over():
    # A process that is killed is such a one for a moment, with all its memory.
    with subprocess.Popen(
        [sys.executable, "-c", MAIN_THREAD_ENDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        member = Member.of(process.pid, "headless")
        assert "State:\tZ" in Path(f"/proc/{process.pid}/status").read_text()
        assert member.alive
        assert not member.gone_within(0.05)
        process.stdin.close()
        assert member.gone_within(10)


def test_nobody_is_gone():
    pid = subprocess.Popen(["true"])
    pid.wait()
    nobody = Member.of(pid.pid, "nobody")
    assert nobody.start == 0
    assert not nobody.alive
    assert nobody.gone_within(0)


def test_it_waits_in_the_kernel_and_no_longer_than_needed(sleeper):
    member = Member.of(sleeper.pid, "sleeper")
    began, used = time.monotonic(), time.thread_time()
    assert not member.gone_within(0.2)
    assert 0.15 < time.monotonic() - began < 1
    killer = threading.Timer(0.2, sleeper.kill)
    killer.start()
    began = time.monotonic()
    assert member.gone_within(20)
    assert time.monotonic() - began < 5
    assert time.thread_time() - used < 0.1  # asleep, and not looking again and again
    killer.join()


def test_it_waits_with_more_descriptors_than_select_knows(sleeper, monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip("few descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    opening = os.pidfd_open

    def high(pid: int) -> int:
        low = opening(pid)
        try:
            return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1500)
        finally:
            os.close(low)

    monkeypatch.setattr(os, "pidfd_open", high)
    try:
        assert not Member.of(sleeper.pid, "sleeper").gone_within(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("error", [PermissionError, OSError])
def test_where_there_are_no_handles_the_living_are_not_gone(
    sleeper, monkeypatch, error
):
    def refuse(pid: int) -> int:
        raise error

    monkeypatch.setattr(os, "pidfd_open", refuse)
    member = Member.of(sleeper.pid, "sleeper")
    assert not member.gone_within(0.01)
    sleeper.kill()
    sleeper.wait()
    assert member.gone_within(0.01)


def named(name: bytes, address: str) -> None:
    ctypes.CDLL(None).prctl(15, name)  # PR_SET_NAME
    tell(address, "named")
    signal.pause()


@pytest.mark.parametrize("name", [b"a b", b") Z 1", b"(x) R (", b"\xff)"])
def test_a_process_may_have_any_name(ear, processes, name):
    process = multiprocessing.get_context("fork").Process(
        target=named, args=(name, ear.address)
    )
    process.start()
    processes.append(process)
    assert process.pid is not None
    ear.hear("named")
    assert Path(f"/proc/{process.pid}/comm").read_bytes() == name + b"\n"
    member = Member.of(process.pid, "named")
    assert member.alive
    assert member.start >= Member.here("me").start
    process.kill()
    process.join()
    assert not member.alive


def test_without_proc_nobody_is_known(monkeypatch):
    monkeypatch.setattr(member_module, "stat_of", lambda pid: None)
    here = Member.here("me")
    assert here == Member(os.getpid(), 0, "me")
    assert not here.alive
