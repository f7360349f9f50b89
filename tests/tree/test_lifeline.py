"""A child ends with its parent, whatever state it is in, and with nobody else."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.tree import targets
from tests.tree.ear import Ear, tell
from vllm_ashutdown.exit_code import ExitCode
from vllm_ashutdown.tree.child import Invitation
from vllm_ashutdown.tree.member import Member

SECONDS = 1.0
"""Within which the kernel has ended all of a tree."""


def kids_of(ear: Ear, count: int) -> list[targets.Kid]:
    """The children that a program tells of."""
    told = [ear.hear("child") for _ in range(count)]
    kids = [targets.Kid(None, Member.parse(one["member"]), one["at"]) for one in told]
    assert all(kid.member.alive for kid in kids)
    return kids


def test_a_whole_family_ends_with_its_head(ear, method, program):
    runs = (("middle", method, "echo"), ("echo",))
    head = program(targets.family, ear.address, method, runs)
    members = [kid.member for kid in kids_of(ear, 2)]
    members.append(Member.parse(ear.hear("below")["member"]))
    assert all(member.alive for member in members)
    head.kill()
    assert [one for one in members if not one.gone_within(SECONDS)] == []


def test_nobody_ends_with_a_sibling_or_a_child(ear, method, program):
    runs = (("echo",), ("middle", method, "echo"))
    program(targets.family, ear.address, method, runs)
    sibling, middle = kids_of(ear, 2)
    for member in (sibling.member, Member.parse(ear.hear("below")["member"])):
        os.kill(member.pid, signal.SIGKILL)
        assert member.gone_within(SECONDS)
    middle.say("ping")
    assert ear.hear("pong")["pid"] == middle.pid


def test_only_what_is_below_ends_with_the_middle(ear, method, program):
    runs = (("middle", method, "echo"), ("echo",))
    program(targets.family, ear.address, method, runs)
    middle, sibling = kids_of(ear, 2)
    below = Member.parse(ear.hear("below")["member"])
    os.kill(middle.pid, signal.SIGKILL)
    assert below.gone_within(SECONDS)
    sibling.say("ping")
    assert ear.hear("pong")["pid"] == sibling.pid


def test_native_code_that_holds_the_gil_is_no_shelter(ear, method, program):
    head = program(targets.family, ear.address, method, (("stuck",), ("echo",)))
    stuck, sibling = kids_of(ear, 2)
    sibling.say("ping")
    ear.hear("pong")
    assert stuck.member.alive
    head.kill()
    assert stuck.member.gone_within(SECONDS)


def test_a_stopped_child_ends_too(ear, method, program):
    head = program(targets.family, ear.address, method, (("echo",),))
    (kid,) = kids_of(ear, 1)
    os.kill(kid.pid, signal.SIGSTOP)
    assert kid.member.alive
    head.kill()
    assert kid.member.gone_within(SECONDS)


def test_it_is_the_process_that_counts_and_not_the_thread(ear, method, program):
    head = program(targets.from_thread, ear.address, method)
    (kid,) = kids_of(ear, 1)
    kid.say("ping")  # the thread that began it is over
    ear.hear("pong")
    assert kid.member.alive
    head.kill()
    assert kid.member.gone_within(SECONDS)


def test_what_the_program_has_forked_holds_nobody_and_is_not_held(ear, method, program):
    head = program(targets.with_fork, ear.address, method)
    kids = kids_of(ear, 2)
    helper = Member.parse(ear.hear("helper")["member"])
    head.kill()
    assert [kid.pid for kid in kids if not kid.member.gone_within(SECONDS)] == []
    assert not helper.gone_within(0.1)
    os.kill(helper.pid, signal.SIGKILL)


def test_a_grandchild_does_not_wait_for_its_parent_to_be_over(ear, method, program):
    head = program(targets.family, ear.address, method, (("lasting", method),))
    (lasting,) = kids_of(ear, 1)
    grandchild = Member.parse(ear.hear("below")["member"])
    os.kill(lasting.pid, signal.SIGSTOP)
    assert grandchild.alive
    head.kill()
    assert grandchild.gone_within(SECONDS)
    assert lasting.member.alive
    os.kill(lasting.pid, signal.SIGKILL)


@pytest.mark.parametrize("cut", [True, False])
def test_a_connection_that_is_cut_already_ends_at_once(ear, processes, program, cut):
    process = program(targets.hanging_on, ear.address, cut=cut)
    process.join(10)
    assert process.exitcode == (-signal.SIGKILL if cut else 0)
    if not cut:
        assert ear.hear("hung on") == {"is": "hung on", "could": True, "cut": False}


# -- arriving ------------------------------------------------------------------

Hosted = Callable[..., tuple[Any, Invitation]]


@pytest.fixture
def host(ear: Ear, program: Callable[..., Any]) -> Hosted:
    """Begins a program that has a home and nothing else."""

    def host(*, listens: bool = True) -> tuple[Any, Invitation]:
        process = program(targets.host, ear.address, listens=listens)
        words = ear.hear("host")
        parent = Member.parse(words["parent"])
        return process, Invitation(words["home"], words["token"], parent)

    return host


def test_a_parent_that_died_before_its_child_arrived(ear, host, program):
    parent, invitation = host()
    process = program(targets.arriving, ear.address, invitation)
    at = ear.hear("waiting")["at"]
    parent.kill()
    parent.join()
    tell(at, "arrive")
    process.join(10)
    assert process.exitcode == ExitCode.PARENT_DIED


def test_a_parent_that_dies_while_its_child_is_at_the_door(ear, host, program):
    parent, invitation = host(listens=False)
    process = program(targets.arriving, ear.address, invitation)
    tell(ear.hear("waiting")["at"], "arrive")
    tell(ear.hear("arrived")["at"], "ping")
    ear.hear("pong")
    parent.kill()
    process.join(10)
    assert process.exitcode in (-signal.SIGKILL, ExitCode.PARENT_DIED)


def test_a_parent_that_lives_and_does_not_answer_is_not_dead(ear, program):
    nowhere = Invitation("\0vllm-ashutdown-nowhere", "token", Member.here("test"))
    process = program(targets.arriving, ear.address, nowhere)
    tell(ear.hear("waiting")["at"], "arrive")
    process.join(10)
    assert process.exitcode == 5  # it went on, without a tie


def test_where_the_kernel_cannot_the_child_leaves_by_itself(ear, host, program):
    parent, invitation = host()
    process = program(targets.arriving, ear.address, invitation, lifelines=False)
    tell(ear.hear("waiting")["at"], "arrive")
    tell(ear.hear("arrived")["at"], "ping")
    ear.hear("pong")
    assert process.exitcode is None
    parent.kill()
    process.join(10)
    assert process.exitcode == ExitCode.PARENT_DIED


@pytest.mark.parametrize("lifelines", [True, False])
def test_no_default_timeout_ends_a_child_whose_parent_lives(
    ear, host, program, lifelines
):
    parent, invitation = host()
    more = {"lifelines": lifelines, "timeout": 0.01}
    process = program(targets.arriving, ear.address, invitation, **more)
    tell(ear.hear("waiting")["at"], "arrive")
    process.join(0.1)  # ten times as long as a socket would wait
    assert process.exitcode is None
    tell(ear.hear("arrived")["at"], "ping")
    ear.hear("pong")
    parent.kill()
    process.join(10)
    assert process.exitcode in (-signal.SIGKILL, ExitCode.PARENT_DIED)
