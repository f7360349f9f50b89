"""The main thread runs its handler, also where it waits on through the signal."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.tree.targets import once_slept_through
from vllm_ashutdown.tree import interrupt
from vllm_ashutdown.tree.interrupt import Interrupt

NUMBER = signal.SIGUSR2


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {n: signal.getsignal(n) for n in (NUMBER, *interrupt._reserved())}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has the main thread sleep through what is sent first; what has been sent."""
    sent: list[int] = []
    send = once_slept_through(interrupt._send)

    def noted(number: int) -> None:
        sent.append(number)
        send(number)

    monkeypatch.setattr(interrupt, "_send", noted)
    return sent


def send_while_waiting(one: Interrupt, wait: Callable[[], Any]) -> Any:
    """Has another thread send it, which gets its turn when this one waits, not before.

    So it is no ``threading.Thread``: to start one is to wait for it.
    """
    sent = threading.Lock()
    sent.acquire()

    def send() -> None:
        one.send(NUMBER)
        sent.release()

    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        _thread.start_new_thread(send, ())
        found = wait()
        sent.acquire()
    finally:
        sys.setswitchinterval(before)
    return found


def interrupted_wait(one: Interrupt, seconds: float = 20.0) -> bool:
    """Whether the handler ran before the wait had lasted so long."""
    handled = threading.Lock()
    handled.acquire()

    def handle(number: int, frame: object) -> None:
        assert one.take() == NUMBER
        handled.release()

    signal.signal(NUMBER, handle)
    woken: bool = send_while_waiting(one, lambda: handled.acquire(timeout=seconds))
    return woken


def test_a_thread_that_waits_is_woken():
    one = Interrupt()
    one.prepare()
    assert interrupted_wait(one)
    assert one.take() is None


def test_what_is_slept_through_is_followed_by_another_signal(asleep):
    one = Interrupt()
    one.prepare()
    assert interrupted_wait(one)
    assert asleep[0] == NUMBER
    assert len(asleep) > 1
    assert NUMBER not in asleep[1:]


def test_the_test_before_would_fail_without_it(asleep, monkeypatch):
    monkeypatch.setattr(Interrupt, "_insist", lambda self: None)
    assert not interrupted_wait(Interrupt(), seconds=0.5)


def test_a_handler_that_comes_late_runs_once(monkeypatch):
    monkeypatch.setattr(interrupt, "AGAIN_SECONDS", 0.001)
    again, send = threading.Event(), interrupt._send

    def noted(number: int) -> None:
        send(number)
        if number != NUMBER:
            again.set()

    monkeypatch.setattr(interrupt, "_send", noted)
    one = Interrupt()
    one.prepare()
    taken: list[int | None] = []

    def handle(number: int, frame: object) -> None:
        assert again.wait(20)  # it is due as long as it is not taken
        taken.append(one.take())

    signal.signal(NUMBER, handle)
    send_while_waiting(one, lambda: None)
    assert taken == [NUMBER]


def test_a_signal_of_someone_else_is_not_taken_for_it():
    one = Interrupt()
    one.prepare()
    taken: list[int | None] = []
    signal.signal(NUMBER, lambda number, frame: taken.append(one.take()))
    signal.raise_signal(NUMBER)
    assert taken == [None]


def test_a_signal_that_the_program_uses_is_left_to_it(asleep):
    mine: list[int] = []
    first = interrupt._reserved()[0]
    signal.signal(first, lambda number, frame: mine.append(number))
    one = Interrupt()
    one.prepare()
    assert interrupted_wait(one)
    assert first not in asleep
    assert mine == []


def test_all_of_them_used_it_is_sent_once(asleep, monkeypatch):
    monkeypatch.setattr(interrupt, "_is_free", lambda number: False)
    one = Interrupt()
    one.prepare()
    assert not interrupted_wait(one, seconds=0.5)
    assert asleep == [NUMBER]


def test_two_share_the_signal_that_wakes():
    one, other = Interrupt(), Interrupt()
    one.prepare()
    other.prepare()
    assert one._wake == other._wake
