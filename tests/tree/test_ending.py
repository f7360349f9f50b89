"""Ask, wait, kill: those that are owned, and never anyone else."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from tests.tree import targets
from vllm_ashutdown.core.report import ProcessEnd
from vllm_ashutdown.tree.ending import (
    alive_after,
    ask,
    end,
    ends_of,
    kill,
    kill_member,
    leaving,
    staying_after,
    strike,
)
from vllm_ashutdown.tree.handle import handles, ready
from vllm_ashutdown.tree.member import Member

SOON = 0.3
"""Seconds that a process gets which will not use them."""


@pytest.fixture
def bystander() -> Iterator[Member]:
    """A program that this process has begun for something else."""
    process = subprocess.Popen(["sleep", "60"])
    yield Member.of(process.pid, "bystander")
    assert process.poll() is None, "nobody had a right to end it"
    process.kill()
    process.wait()


def below_of(ear: Any) -> Member:
    return Member.parse(ear.hear("below")["member"])


# -- end -----------------------------------------------------------------------


def test_the_willing_leave_with_success_and_in_no_time(begin, bystander):
    kids = [begin(targets.echo, name=f"core {number}") for number in range(2)]
    began = time.monotonic()
    ends = end([kid.process for kid in kids], 10.0)
    assert time.monotonic() - began < 5
    assert ends == [
        ProcessEnd(f"core {number}", kid.pid, 0) for number, kid in enumerate(kids)
    ]
    assert end([kids[0].process], 10.0) == ends[:1]  # told of, and left alone


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "deaf"])
def test_the_unwilling_are_killed_when_their_time_is_out(
    begin, bystander, log, capfd, stopped
):
    kid = begin(targets.deaf)
    willing = begin(targets.echo)
    if stopped:
        os.kill(kid.pid, signal.SIGSTOP)
    began = time.monotonic()
    ends = end([kid.process, willing.process], SOON)
    assert SOON <= time.monotonic() - began < SOON + 1
    assert ends == [
        ProcessEnd("deaf", kid.pid, -signal.SIGKILL, killed=True),
        ProcessEnd("echo", willing.pid, 0),
    ]
    assert f"deaf (pid {kid.pid}) did not leave in time: SIGKILL" in log.text
    assert "echo" not in log.text
    # Who still could has written down what it was at; the willing were not asked.
    assert capfd.readouterr().err.count("Current thread 0x") == int(not stopped)


def test_with_the_killed_goes_what_it_told_of(ear, method, begin, bystander):
    kid = begin(targets.middle, method, "deaf")
    below = below_of(ear)
    os.kill(kid.pid, signal.SIGSTOP)
    ends = end([kid.process], SOON)
    assert not below.alive
    assert ends == [
        ProcessEnd("middle", kid.pid, -signal.SIGKILL, killed=True),
        ProcessEnd("deaf", below.pid, -signal.SIGKILL, killed=True),
    ]


def test_the_willing_end_their_own_and_tell_how(ear, method, begin):
    kid = begin(targets.middle, method, "echo")
    below = below_of(ear)
    assert end([kid.process], 10.0) == [
        ProcessEnd("middle", kid.pid, 0),
        ProcessEnd("echo", below.pid, 0),
    ]


def test_each_end_has_its_time_of_those_further_down_too(ear, method, begin):
    kid = begin(targets.middle, method, "echo")
    below_of(ear)
    began = time.monotonic()
    ends = end([kid.process], 10.0)
    over = time.monotonic()
    assert [one.name for one in ends] == ["middle", "echo"]
    assert all(one.ended is not None and began < one.ended < over for one in ends)
    again = ends_of(kid.process, set())
    assert [one.ended for one in again[:1]] == [ends[0].ended], "it ended once"


def test_what_lives_has_no_time_of_its_end(begin):
    (one,) = ends_of(begin(targets.echo).process, set())
    assert (one.exitcode, one.ended) == (None, None)


@pytest.mark.parametrize("willing", [True, False])
def test_what_it_told_nobody_of_lives_on_and_keeps_nobody_waiting(
    ear, begin, log, willing
):
    kid = begin(targets.with_helper)
    helper = Member.parse(ear.hear("helper")["member"])
    if not willing:
        os.kill(kid.pid, signal.SIGSTOP)
    began = time.monotonic()
    (one,) = end([kid.process], 10.0 if willing else SOON)
    # The helper holds the other end of the sentinel of multiprocessing open.
    assert time.monotonic() - began < SOON + 0.6
    assert one.clean is willing
    assert ("SIGKILL" in log.text) is not willing
    assert helper.alive
    os.kill(helper.pid, signal.SIGKILL)


def test_each_is_told_what_it_may_take(ear, fork):
    kid = fork(targets.noting)
    kid.say("on stop")
    kid.say("ping")
    ear.hear("pong")
    ask([kid.process], 7.0, 3.0)
    assert ear.hear("told")["message"] == {"do": "stop", "seconds": 7.0, "drain": 3.0}


def test_struck_from_another_thread_it_counts_as_killed(fork):
    kid = fork(targets.deaf)
    striker = threading.Timer(0.1, strike, [[kid.process]])
    striker.start()
    began = time.monotonic()
    assert end([kid.process], 30.0) == [
        ProcessEnd("deaf", kid.pid, -signal.SIGKILL, killed=True)
    ]
    assert time.monotonic() - began < 5
    striker.join()


def test_a_handler_may_strike_while_its_thread_looks_for_an_exit_code(fork):
    kid = fork(targets.deaf)
    process, signals, struck = kid.process, [signal.SIGTERM], []
    waitpid = os.waitpid

    def interrupted(pid: int, flags: int) -> Any:
        if signals:
            signals.clear()
            struck.append(strike([process]))
        return waitpid(pid, flags)

    os.waitpid = interrupted
    try:
        looking = threading.Thread(target=lambda: process.exitcode, daemon=True)
        looking.start()
        looking.join(5)
        assert not looking.is_alive(), "it waits for itself"
    finally:
        os.waitpid = waitpid
    assert struck == [{kid.pid}]
    assert alive_after([process], 10.0) == []


# -- strike --------------------------------------------------------------------


def test_only_exactly_this_process_is_killed(bystander):
    process = subprocess.Popen(["sleep", "60"])
    mine = Member.of(process.pid, "mine")
    recycled = structs.replace(bystander, start=bystander.start - 1)
    assert not kill_member(recycled)
    assert not kill_member(structs.replace(bystander, start=0))
    assert kill_member(mine)
    assert process.wait(10) == -signal.SIGKILL
    assert not kill_member(mine)  # of nobody


@pytest.mark.parametrize("error", [AttributeError, PermissionError])
def test_the_same_where_there_are_no_handles(bystander, monkeypatch, error):
    def refuse(pid: int) -> int:
        raise error

    monkeypatch.setattr(os, "pidfd_open", refuse)
    test_only_exactly_this_process_is_killed(bystander)


def test_a_struck_process_takes_along_what_it_told_of_by_name(
    ear, method, begin, bystander
):
    kid = begin(targets.middle, method, "echo")
    below = below_of(ear)
    record = targets.a_home().record(kid.pid)
    assert list(record.below.values()) == [below]
    other = structs.replace(bystander, start=bystander.start - 1)
    record.below[bystander.pid] = other  # a pid that has come back
    untied = subprocess.Popen(["sleep", "60"])
    record.below[untied.pid] = Member.of(untied.pid, "untied")
    killed = strike([kid.process])
    assert {kid.pid, untied.pid} <= killed <= {kid.pid, untied.pid, below.pid}
    assert below.gone_within(1)
    assert untied.wait(10) == -signal.SIGKILL
    assert alive_after([kid.process], 5) == []


def test_what_is_over_is_not_struck(fork):
    kid = fork(targets.echo)
    end([kid.process], 10.0)
    assert strike([kid.process]) == set()
    assert kill([]) == set()


# -- how they ended ------------------------------------------------------------


def test_of_a_middle_that_was_killed_the_rest_is_known(ear, method, begin):
    kid = begin(targets.middle, method, "echo", "echo")
    below = [below_of(ear), below_of(ear)]
    os.kill(kid.pid, signal.SIGKILL)
    assert alive_after([kid.process], 10.0) == []
    for member in below:
        assert member.gone_within(1)
    assert ends_of(kid.process, set()) == [
        ProcessEnd("middle", kid.pid, -signal.SIGKILL),
        *(ProcessEnd("echo", one.pid, -signal.SIGKILL, killed=True) for one in below),
    ]


def test_what_it_told_last_is_in_it(ear, method, begin):
    kid = begin(targets.middle, method, "echo")
    below = below_of(ear)
    told = {"name": "echo", "pid": below.pid, "exitcode": 5, "killed": False}
    kid.say("send", message={"is": "ended", "end": told})
    kid.say("leave")
    # It leaves without a word to its child, which ends with it; it joins it first.
    os.kill(below.pid, signal.SIGKILL)
    assert alive_after([kid.process], 10.0) == []
    assert ends_of(kid.process, set()) == [
        ProcessEnd("middle", kid.pid, 0),
        ProcessEnd("echo", below.pid, 5),
    ]


def test_of_the_living_it_says_that_they_live(ear, method, begin):
    kid = begin(targets.middle, method, "echo")
    below = below_of(ear)
    assert ends_of(kid.process, set()) == [
        ProcessEnd("middle", kid.pid, None),
        ProcessEnd("echo", below.pid, None, killed=True),
    ]


# -- waiting -------------------------------------------------------------------


def test_it_waits_for_all_and_names_who_stays(fork):
    kids = [fork(targets.deaf) for _ in range(2)]
    os.kill(kids[0].pid, signal.SIGKILL)
    assert alive_after([kid.process for kid in kids], SOON) == [kids[1].process]
    assert kids[0].process.exitcode == -signal.SIGKILL
    assert alive_after([], 10.0) == []


def test_who_says_that_it_leaves_is_not_waited_for_by_one_who_leaves_too(begin):
    kids = [begin(targets.lingering), begin(targets.deaf), begin(targets.echo)]
    processes = [kid.process for kid in kids]
    os.kill(kids[2].pid, signal.SIGKILL)
    assert staying_after(processes, SOON) == processes[1:2]
    assert [leaving(one) for one in processes] == [5, None, None]
    assert processes[2].exitcode == -signal.SIGKILL
    # Whoever stays waits to the end, and sees to it that there is one.
    assert alive_after(processes[:1], SOON) == processes[:1]


def test_its_word_ends_the_wait(fork, monkeypatch):
    kids = [fork(targets.echo), fork(targets.echo)]
    waits: list[float] = []

    def wait(descriptors: Any, seconds: float) -> Any:
        waits.append(seconds)
        for kid in kids[len(waits) - 1 : len(waits)]:
            # Said while it waits, one after the other, with a wait for each.
            kid.say("send", message={"is": "leaving", "code": 0})
        return ready(descriptors, seconds)

    monkeypatch.setattr("vllm_ashutdown.tree.ending.ready", wait)
    assert staying_after([kid.process for kid in kids], 20.0) == []
    assert len(waits) == 2
    assert waits[1] > 10


def test_whom_its_parent_did_not_wait_for_is_waited_for_above(ear, method, begin):
    kid = begin(targets.hasty, method)
    below = below_of(ear)
    ends = end([kid.process], 10.0)
    assert not below.alive
    assert ends == [
        ProcessEnd("hasty", kid.pid, 0),
        ProcessEnd("lingering", below.pid, 5),
    ]


def test_without_handles_it_waits_for_the_sentinel(fork, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    kids = [fork(targets.deaf) for _ in range(2)]
    os.kill(kids[0].pid, signal.SIGKILL)
    assert alive_after([kid.process for kid in kids], SOON) == [kids[1].process]


@pytest.mark.parametrize("seconds", [float("inf"), 1e12])
def test_a_wait_may_be_as_long_as_it_likes(fork, seconds):
    kid = fork(targets.echo)
    assert end([kid.process], seconds) == [ProcessEnd("echo", kid.pid, 0)]


def test_handles_are_closed_and_of_the_running_only(fork):
    kids = [fork(targets.deaf) for _ in range(2)]
    os.kill(kids[0].pid, signal.SIGKILL)
    alive_after([kids[0].process], 10.0)
    with handles([kid.process for kid in kids]) as running:
        assert list(running.values()) == [kids[1].process]
        (handle,) = running
        os.fstat(handle)
        assert ready(running, 0.0) == []
        kids[1].process.kill()
        assert ready(running, 10.0) == [handle]
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(handle)
