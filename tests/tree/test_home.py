"""A parent hears its children, nobody else, and whatever they say."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import multiprocessing
import os
import queue
import signal
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tree import targets
from vllm_ashutdown.tree import door
from vllm_ashutdown.tree import home as home_module
from vllm_ashutdown.tree import message as message_module
from vllm_ashutdown.tree import place as place_module
from vllm_ashutdown.tree.home import Home
from vllm_ashutdown.tree.member import Member
from vllm_ashutdown.tree.message import Message
from vllm_ashutdown.tree.place import home, inherited
from vllm_ashutdown.tree.record import Record

DEEP = b"[" * 100_000
NOT_ASCII = b'{"token": "\\u00e9", "is": "talk"}'
HALF_A_LETTER = b'{"token": "\\ud800", "is": "talk"}'

_pids = iter(range(10_000_000, 20_000_000))  # of nobody


class Guest:
    """Speaks like a child, from this very process."""

    def __init__(
        self, member: Member | None = None, hello: Message | None = None
    ) -> None:
        self.member = member or Member(next(_pids), 7, "guest")
        self.heard: queue.Queue[tuple[Member, int]] = queue.Queue()
        self.record.decide = self._decide
        self._ends = []
        for role in ("talk", "line"):
            end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            end.connect(targets.a_home().invitation.address)
            token = targets.a_home().invitation.token
            said = {"is": role, "token": token, "member": self.member.plain()}
            end.send(json.dumps(said | (hello or {})).encode())
            self._ends.append(end)
        targets.a_home().door.watch()
        targets.fence()

    @property
    def record(self) -> Record:
        return targets.a_home().record(self.member.pid)

    def _decide(self, member: Member, number: int) -> bool:
        self.heard.put((member, number))
        return True

    def say(self, packet: bytes | Message) -> None:
        whole = packet if isinstance(packet, bytes) else json.dumps(packet).encode()
        self._ends[0].send(whole)

    def report(self, number: int) -> tuple[Member, int]:
        plain = self.member.plain()
        self.say({"is": "signalled", "member": plain, "signal": number})
        return self.heard.get(timeout=10)

    def hear(self) -> Any:
        self._ends[0].settimeout(10)
        return message_module.receive(self._ends[0])

    def leave(self) -> None:
        for end in self._ends:
            end.close()


@pytest.fixture
def guest() -> Iterator[Guest]:
    one = Guest()
    yield one
    one.leave()


def descriptors() -> set[int]:
    return {int(one.name) for one in Path("/proc/self/fd").iterdir()}


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


# -- who is heard --------------------------------------------------------------


@pytest.mark.parametrize(
    "hello",
    [b"", b"\xff", b"{}", b"[1]", DEEP, NOT_ASCII, HALF_A_LETTER, b'{"token": null}'],
    ids=["left", "bytes", "empty", "list", "deep", "letter", "half letter", "null"],
)
def test_a_stranger_is_sent_off_and_the_next_child_is_heard(guest, hello):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.settimeout(10)
        stranger.connect(targets.a_home().invitation.address)
        if hello:
            stranger.send(hello)
            assert stranger.recv(1) == b""
    assert guest.report(signal.SIGINT) == (guest.member, signal.SIGINT)
    late = Guest()
    assert late.report(signal.SIGTERM) == (late.member, signal.SIGTERM)
    late.leave()


def test_a_stranger_with_the_wrong_token_cannot_speak_for_a_child(fork, ear):
    kid = fork(targets.noting)
    talk = targets.a_home().record(kid.pid).talk
    stranger = Guest(kid.member, {"token": "f" * 32})
    assert stranger.hear() is None
    stranger.leave()
    assert targets.a_home().record(kid.pid).talk is talk
    kid.process.terminate()
    assert ear.hear("meant")["pid"] == kid.pid


@pytest.mark.parametrize("member", [None, 3, {"pid": 1}, {"pid": 1e999}])
def test_a_child_that_does_not_say_who_it_is_is_sent_off(guest, member):
    odd = Guest(hello={"member": member})
    assert odd.hear() is None
    odd.leave()
    guest.report(signal.SIGINT)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be someone else")
def test_another_user_is_sent_off_whatever_he_knows(guest, processes):
    process = multiprocessing.get_context("fork").Process(
        target=targets.someone_else, args=(targets.a_home().invitation,)
    )
    process.start()
    processes.append(process)
    process.join(10)
    assert process.exitcode == 4
    guest.report(signal.SIGINT)


# -- what is heard -------------------------------------------------------------


def test_what_a_child_cannot_have_meant_ends_neither_it_nor_the_listening(guest, log):
    plain = guest.member.plain()
    malformed = [
        b"\xff",
        DEEP,
        b"{}",
        b"[]",
        {"is": "signalled"},
        {"is": "signalled", "member": plain, "signal": "x"},
        {"is": "member", "member": 3},
        {"is": "made"},
    ]
    for packet in malformed:
        guest.say(packet)
    assert guest.report(signal.SIGINT) == (guest.member, signal.SIGINT)
    assert log.text.count("guest said") == len(malformed)
    assert not guest.record.gone.is_set()
    assert not guest.record.said
    assert not guest.record.below


def test_what_a_child_tells_is_kept_apart_by_kind(guest):
    below = Member(2, 3, "worker")
    guest.say({"is": "member", "member": below.plain()})
    guest.say({"is": "ended", "end": {"name": "worker"}})
    guest.say({"is": "report", "report": "{}"})
    guest.say({"is": "made", "path": "/dev/shm/x", "kind": "shared memory"})
    guest.report(signal.SIGINT)
    assert guest.record.below == {2: below}
    assert guest.record.ended == [{"is": "ended", "end": {"name": "worker"}}]
    assert guest.record.said == [{"is": "report", "report": "{}"}]
    assert guest.record.made == {"/dev/shm/x": "shared memory"}


def test_all_that_a_child_said_is_read_before_it_is_gone():
    guest = Guest()
    gone = threading.Event()
    guest.record.on_gone = gone.set
    for number in range(100):
        guest.say({"is": "report", "number": number})
    assert not gone.is_set()
    guest.leave()
    assert gone.wait(10)
    assert guest.record.gone.is_set()
    assert [words["number"] for words in guest.record.said] == list(range(100))


# -- who is who ----------------------------------------------------------------


def test_a_later_child_of_the_same_pid_is_someone_else(guest):
    here = targets.a_home()
    assert here.ask(guest.member.pid)
    assert guest.hear() == {"do": "stop"}
    guest.leave()
    later = Guest(Member(guest.member.pid, guest.member.start + 1, "later"))
    assert later.record.name == "later"
    assert not later.record.gone.is_set()
    assert not later.record.wanted
    assert targets.a_home().ask(later.member.pid)
    assert later.hear() == {"do": "stop"}  # and nothing before it
    assert message_module.send(later._ends[0], {})
    later._ends[0].setblocking(False)
    assert message_module.receive(later._ends[0]) is None
    later.leave()


def test_a_later_process_of_the_same_pid_is_adopted_anew(fork, ear):
    kid = fork(targets.noting)
    here = targets.a_home()
    record = here.record(kid.pid)
    assert record.start == kid.member.start
    record.start -= 1  # an earlier one had it
    here.adopt(kid.process)
    assert here.record(kid.pid) is not record
    assert here.record(kid.pid).adopted


def test_adopted_twice_it_is_asked_once(fork, ear):
    kid = fork(targets.noting)
    targets.take_in([kid.process])
    kid.say("on stop")
    kid.say("ping")
    ear.hear("pong")
    kid.process.terminate()
    ear.hear("told")
    kid.say("ping")
    assert ear.hear("told", "pong")["is"] == "pong"


# -- descriptors ---------------------------------------------------------------


@pytest.mark.matrix  # what else runs in one long process has descriptors too
def test_children_that_came_and_went_leave_no_descriptor(method, ear, processes):
    targets.fence()
    before = descriptors()
    count = 20 if method == "fork" else 2
    context: Any = multiprocessing.get_context(method)
    meet = targets.Ear()
    begun = [
        context.Process(
            target=targets.Entry(targets.quick), args=(ear.address, meet.address)
        )
        for _ in range(count)
    ]
    processes += begun
    for process in begun:
        process.start()
    targets.take_in(begun)
    for _ in begun:
        meet.hear("ready")
    for process in begun:
        process.join(10)
        assert targets.a_home().record(process.pid).gone.wait(10)
        process.close()
    processes.clear()
    meet.close()
    targets.fence()
    targets.fence()
    if method == "spawn":  # the resource tracker's, which is begun once
        before |= {multiprocessing.resource_tracker._resource_tracker._fd}  # type: ignore[attr-defined]
    more = descriptors() - before
    assert not {one: Path(f"/proc/self/fd/{one}").readlink() for one in more}


def test_a_lifeline_that_comes_after_its_child_has_gone_is_closed():
    targets.fence()
    before = descriptors()
    guest = Guest()
    guest._ends[0].close()
    guest.record.gone.wait(10)
    guest._ends[1].close()
    targets.fence()
    targets.fence()
    assert descriptors() == before


def test_without_descriptors_it_waits_and_then_lets_the_child_in(monkeypatch, log):
    monkeypatch.setattr(door, "ACCEPT_PAUSE", 0.01)
    here = Home(threading.RLock())
    real, refusals = here.door._listener, iter(range(2))

    class Listener:
        def fileno(self) -> int:
            return real.fileno()

        def accept(self) -> Any:
            if next(refusals, None) is not None:
                raise OSError(errno.EMFILE, "no descriptors")
            return real.accept()

    here.door._selector.unregister(real)
    here.door._listener = Listener()  # type: ignore[assignment]
    here.door._selector.register(here.door._listener, 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.settimeout(10)
        stranger.connect(here.invitation.address)
        stranger.send(b"{}")
        began = time.monotonic()
        here.door.watch()
        assert stranger.recv(1) == b""
    assert time.monotonic() - began >= 0.02
    assert log.text.count("a child process is not heard") == 2


# -- fork ----------------------------------------------------------------------


def test_a_fork_has_nothing_of_its_parents_home(guest, ear):
    guest.report(signal.SIGINT)
    here = targets.a_home()
    held = {here.door._listener.fileno(), here.door._selector.fileno()}
    held |= {one.fileno() for one in here.door._connections}
    assert len(held) >= 4
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            still = [one for one in held if is_open(one)]
            new = home()
            same = new is None or new.invitation.address == here.invitation.address
            invited = inherited() == here.invitation
            targets.tell(ear.address, "fork", n=len(still), same=same, invited=invited)
        os._exit(0)
    os.waitpid(pid, 0)
    words = ear.hear("fork")
    assert not words["same"]
    assert words["invited"]
    assert words["n"] == 0
    assert guest.report(signal.SIGTERM) == (guest.member, signal.SIGTERM)


def test_a_signal_handler_may_ask_for_the_home_that_its_thread_is_asking_for():
    with place_module._place.lock:
        asked = []
        before = signal.signal(signal.SIGUSR1, lambda *_: asked.append(home()))
        try:
            signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert asked == [home()]


def test_nobody_forks_while_a_connection_is_being_let_in():
    taken, go, forked = threading.Event(), threading.Event(), threading.Event()

    def let_in() -> None:
        with place_module._place.lock:
            taken.set()
            go.wait(10)
            assert not forked.is_set()

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        forked.set()
        os.waitpid(pid, 0)

    threads = [threading.Thread(target=let_in), threading.Thread(target=fork)]
    threads[0].start()
    taken.wait(10)
    threads[1].start()
    assert not forked.wait(0.05)
    go.set()
    assert forked.wait(10)
    for thread in threads:
        thread.join(10)


def test_where_there_can_be_no_home_there_is_none(monkeypatch, log):
    monkeypatch.setattr(place_module._place, "home", None)

    def refuse(lock: object) -> Home:
        raise OSError("no such family")

    monkeypatch.setattr(home_module, "Home", refuse)
    assert home() is None
    assert "children are not tied to this one: no such family" in log.text
    monkeypatch.setattr(place_module.sys, "platform", "darwin")
    assert home() is None


def test_a_child_that_nobody_holds_any_more_holds_no_descriptor(method, ear, processes):
    kid = targets.begin(method, targets.echo, ear.address)
    before = descriptors()
    kid.process.kill()
    kid.process.join()
    popen = weakref.ref(kid.process._popen)
    gc.disable()
    try:
        kid.process = None
        assert popen() is None, "it waits for somebody to collect garbage"
    finally:
        gc.enable()
    assert descriptors() < before
