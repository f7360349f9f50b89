"""The stop of a whole tree: servers first, then what they need, and each by name."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.tree import targets
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Outcome, Phase
from vllm_ashutdown.core.report import ProcessEnd, ShutdownReport
from vllm_ashutdown.core.trigger import Trigger
from vllm_ashutdown.tree import stopping as stopping_module
from vllm_ashutdown.tree.handle import ready
from vllm_ashutdown.tree.stopping import Tree, TreeStop

WHY = Trigger.call("a test")
SECOND = Trigger.signal(signal.SIGINT)


class Stopping:
    """A stop on a thread of its own, as the launcher's main thread runs it."""

    def __init__(self, tree: Tree, mode: Mode, drain: float, teardown: float) -> None:
        self.stop = TreeStop(tree, mode, drain, teardown, WHY)
        self._threads = ThreadPoolExecutor(1)
        self._report: Future[ShutdownReport] = self._threads.submit(self.stop.run)

    def raise_to(self, mode: Mode) -> None:
        self.stop.raise_to(mode, SECOND)

    def report(self) -> ShutdownReport:
        report = self._report.result(10)
        self._threads.shutdown()
        return report


def tree_of(
    servers: list[targets.Kid],
    cores: list[targets.Kid],
    others: list[targets.Kid],
    release: Callable[[], None] = lambda: None,
    made: Callable[[], dict[str, str]] = dict,
) -> Tree:
    every = [[kid.process for kid in kids] for kids in (servers, cores, others)]
    return Tree(*every, release=release, made=made)


def phases_of(report: ShutdownReport) -> list[Phase]:
    return [record.phase for record in report.phases]


def test_the_cores_are_told_when_the_last_server_is_gone(ear, fork):
    servers = [fork(targets.server, 1, refused) for refused in (3, 4)]
    cores = [fork(targets.core) for _ in range(2)]
    other = fork(targets.core)
    released = []
    tree = tree_of(servers, cores, [other], lambda: released.append(ear.hear()))
    stopping = Stopping(tree, Mode.DRAIN, 30.0, 5.0)
    report = stopping.report()
    order = [*released, *(ear.hear() for _ in range(6))]
    assert [words["is"] for words in order[-3:]] == ["core"] * 3
    assert order[-1]["pid"] == other.pid  # it is needed until the cores' last word
    told = [words["message"] for words in order if words["is"] == "told"]
    assert [(one["mode"], one["trigger"]) for one in told] == [
        ("drain", WHY.plain())
    ] * 2
    for one in told:
        assert 29 < one["drain"] <= 30
        assert one["drain"] < one["seconds"] < 30 + 5
    assert report.processes == tuple(
        ProcessEnd(kid.process.name, kid.pid, 0) for kid in [*servers, *cores, other]
    )
    assert (report.requests.completed, report.requests.aborted) == (2, 4)
    assert report.requests.refused == 7
    assert phases_of(report) == [
        Phase.DRAIN,
        Phase.CORE,
        Phase.RELEASE,
        Phase.HTTP,
        Phase.AUDIT,
    ]
    drain, core = report.phases[:2]
    assert drain.began == pytest.approx(0.3)
    assert drain.spent == pytest.approx(0.6)
    assert core.outcome is Outcome.DONE, "a server's own core is none of the tree's"
    assert report.mode is report.final_mode is Mode.DRAIN
    assert report.clean
    assert report.seconds < 5


def test_the_cores_need_not_wait_for_the_kernel_to_be_done_with_a_server(ear, fork):
    server, core = fork(targets.slow_to_go), fork(targets.core)
    stopping = Stopping(tree_of([server], [core], []), Mode.ABORT, 0.0, 10.0)
    assert ear.hear("core")["pid"] == core.pid
    assert server.process.exitcode is None
    server.say("go")
    report = stopping.report()
    assert report.processes == (
        ProcessEnd("slow_to_go", server.pid, 0),
        ProcessEnd("core", core.pid, 0),
    )
    assert report.requests.refused == 2
    assert report.clean


def test_what_the_cores_need_is_told_when_they_leave_and_not_when_they_are_gone(
    ear, fork
):
    core, other = fork(targets.slow_to_go), fork(targets.core)
    stopping = Stopping(tree_of([], [core], [other]), Mode.ABORT, 0.0, 10.0)
    assert ear.hear("core")["pid"] == other.pid
    other.process.join(10)
    assert core.process.exitcode is None
    core.say("go")
    report = stopping.report()
    assert report.processes == (
        ProcessEnd("slow_to_go", core.pid, 0),
        ProcessEnd("core", other.pid, 0),
    )
    assert report.clean


def test_what_the_cores_need_is_not_told_before_and_has_its_time(ear, fork):
    core, other = fork(targets.deaf), fork(targets.core)
    stopping = Stopping(tree_of([], [core], [other]), Mode.ABORT, 0.0, 1.0)
    report = stopping.report()
    assert ear.hear("core")["pid"] == other.pid
    assert report.processes == (
        ProcessEnd("deaf", core.pid, -signal.SIGKILL, killed=True),
        ProcessEnd("core", other.pid, 0),
    )


def test_a_server_closes_while_the_cores_stop_and_its_report_is_whole(ear, fork):
    server, core = fork(targets.slow_to_close), fork(targets.core)
    stopping = Stopping(tree_of([server], [core], []), Mode.DRAIN, 30.0, 10.0)
    assert ear.hear("core")["pid"] == core.pid
    core.process.join(10)
    assert server.process.exitcode is None
    server.say("go")
    report = stopping.report()
    assert report.processes == (
        ProcessEnd("slow_to_close", server.pid, 0),
        ProcessEnd("core", core.pid, 0),
    )
    assert report.requests.refused == 2
    assert phases_of(report) == [
        Phase.DRAIN,
        Phase.CORE,
        Phase.RELEASE,
        Phase.HTTP,
        Phase.AUDIT,
    ]
    assert report.clean


def test_the_cores_wait_for_the_last_server_that_needs_them(ear, fork):
    quick, slow = fork(targets.slow_to_close), fork(targets.server, 2, 0)
    core = fork(targets.core)
    stopping = Stopping(tree_of([quick, slow], [core], []), Mode.DRAIN, 30.0, 10.0)
    assert ear.hear("told", "core")["pid"] == slow.pid
    quick.say("go")
    quick.process.join(10)
    assert core.process.exitcode is None
    stopping.raise_to(Mode.ABORT)
    assert [ear.hear()["is"] for _ in range(3)] == ["told", "leaving", "core"]
    assert stopping.report().clean


@pytest.mark.parametrize("server", [targets.slow_to_close, targets.slow_to_go])
def test_a_server_that_says_that_it_is_done_and_stays_is_killed(ear, fork, server):
    name = server.__name__
    server, core = fork(server), fork(targets.core)
    stopping = Stopping(tree_of([server], [core], []), Mode.ABORT, 0.0, 1.0)
    report = stopping.report()
    assert report.processes == (
        ProcessEnd(name, server.pid, -signal.SIGKILL, killed=True),
        ProcessEnd("core", core.pid, 0),
    )
    assert not report.clean
    assert report.seconds < 1.5


def test_nothing_is_told_twice_while_a_server_drains(ear, fork):
    slow, quick = fork(targets.server, 2, 0), fork(targets.server, 1, 0)
    core = fork(targets.core)
    stopping = Stopping(tree_of([slow, quick], [core], []), Mode.DRAIN, 30.0, 5.0)
    first = [ear.hear() for _ in range(3)]
    assert sorted(words["is"] for words in first) == ["leaving", "told", "told"]
    quick.process.join(5)
    assert core.process.exitcode is None
    assert slow.process.exitcode is None
    stopping.raise_to(Mode.DRAIN)  # no harder than it is: nobody is told
    stopping.raise_to(Mode.ABORT)
    words = ear.hear()
    assert (words["is"], words["pid"]) == ("told", slow.pid)
    assert words["message"]["mode"] == "abort"
    assert words["message"]["drain"] == 0
    assert words["message"]["seconds"] < 5
    report = stopping.report()
    assert (report.mode, report.final_mode) == (Mode.DRAIN, Mode.ABORT)
    assert report.clean
    assert report.seconds < 5


def test_raised_to_kill_nobody_is_waited_for(ear, begin):
    server, core = begin(targets.server, 0, 0), begin(targets.deaf)
    stopping = Stopping(tree_of([server], [core], []), Mode.DRAIN, math.inf, 5.0)
    ear.hear("told")
    stopping.raise_to(Mode.KILL)
    report = stopping.report()
    assert report.seconds < 3
    assert report.final_mode is Mode.KILL
    assert report.processes == (
        ProcessEnd("server", server.pid, -signal.SIGKILL, killed=True),
        ProcessEnd("deaf", core.pid, -signal.SIGKILL, killed=True),
    )
    assert not report.clean


def test_raised_to_abort_its_deadline_moves(fork, monkeypatch):
    waiting = threading.Event()

    def wait(descriptors: list[int], seconds: float) -> list[int]:
        waiting.set()
        return ready(descriptors, seconds)

    monkeypatch.setattr(stopping_module, "ready", wait)
    server = fork(targets.server, 0, 0)
    stopping = Stopping(tree_of([server], [], []), Mode.DRAIN, 30.0, 1.0)
    waiting.wait(10)  # until the old one
    stopping.raise_to(Mode.ABORT)
    report = stopping.report()
    assert report.processes[0].killed
    assert report.seconds < 2


def test_raised_to_kill_while_the_cores_stop(ear, fork):
    core = fork(targets.noting)
    stopping = Stopping(tree_of([], [core], []), Mode.ABORT, 0.0, 30.0)
    ear.hear("meant")
    stopping.raise_to(Mode.KILL)
    report = stopping.report()
    assert report.processes == (
        ProcessEnd("noting", core.pid, -signal.SIGKILL, killed=True),
    )
    assert report.seconds < 5


def test_raised_before_it_runs_it_is_as_hard_from_the_start(ear, fork):
    server = fork(targets.server, 0, 0)
    stop = TreeStop(tree_of([server], [], []), Mode.DRAIN, 30.0, 5.0, WHY)
    stop.raise_to(Mode.KILL, SECOND)
    report = stop.run()
    assert report.processes == (
        ProcessEnd("server", server.pid, -signal.SIGKILL, killed=True),
    )
    stop.raise_to(Mode.KILL, SECOND)  # over: it wakes nobody, and harms nothing


def test_a_server_that_hangs_is_killed_and_the_cores_still_get_their_time(ear, fork):
    hangs, leaves = fork(targets.server, 0, 0), fork(targets.server, 1, 5)
    core = fork(targets.core)
    stopping = Stopping(tree_of([hangs, leaves], [core], []), Mode.ABORT, 0.0, 1.5)
    report = stopping.report()
    assert report.processes == (
        ProcessEnd("server", hangs.pid, -signal.SIGKILL, killed=True),
        ProcessEnd("server", leaves.pid, 0),
        ProcessEnd("core", core.pid, 0),
    )
    assert not report.clean
    assert 0.4 < report.seconds < 1.5
    assert report.requests.refused == 5


def test_a_signal_handler_may_raise_it(ear, fork):
    """As the launcher does: it runs on the main thread, and so do its signals."""
    server = fork(targets.server, 0, 0)
    stop = TreeStop(tree_of([server], [], []), Mode.DRAIN, 30.0, 5.0, WHY)
    before = signal.signal(signal.SIGUSR1, lambda *_: stop.raise_to(Mode.KILL, SECOND))

    def signals() -> None:
        ear.hear("told")
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=signals)
    thread.start()
    try:
        report = stop.run()
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert report.processes[0].killed
    assert report.seconds < 3


@pytest.mark.parametrize("drain", [0.0, 1e9, math.inf])
def test_a_drain_may_be_as_long_as_it_likes(fork, drain):
    server = fork(targets.server, 1, 0)
    stopping = Stopping(tree_of([server], [], []), Mode.for_drain(drain), drain, 5.0)
    report = stopping.report()
    assert report.processes == (ProcessEnd("server", server.pid, 0),)
    assert report.seconds < 5


def test_a_server_that_died_before_is_told_of_and_not_waited_for(fork):
    server = fork(targets.echo)
    os.kill(server.pid, signal.SIGKILL)
    server.process.join()
    core = fork(targets.core)
    report = Stopping(tree_of([server], [core], []), Mode.ABORT, 0.0, 5.0).report()
    assert report.processes == (
        ProcessEnd("echo", server.pid, -signal.SIGKILL),
        ProcessEnd("core", core.pid, 0),
    )
    assert report.seconds < 2


def test_an_empty_tree_leaves_no_descriptor(log):
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    TreeStop(tree_of([], [], []), Mode.ABORT, 0.0, 1.0, WHY).run()
    before = descriptors()
    report = TreeStop(tree_of([], [], []), Mode.ABORT, 0.0, 1.0, WHY).run()
    assert descriptors() == before
    assert report.clean
    assert phases_of(report) == [Phase.CORE, Phase.RELEASE, Phase.AUDIT]


def test_a_step_that_fails_does_not_keep_the_others_from_their_turn(fork, log):
    def broken() -> None:
        raise RuntimeError("the socket is broken")

    core = fork(targets.core)
    tree = tree_of([], [core], [], release=broken)
    began = time.monotonic()
    report = TreeStop(tree, Mode.ABORT, 0.0, 5.0, WHY).run()
    assert time.monotonic() - began < 3
    assert phases_of(report) == [Phase.CORE, Phase.RELEASE, Phase.AUDIT]
    assert report.phases[1].outcome is Outcome.FAILED
    assert "the socket is broken" in report.phases[1].detail
    assert not report.clean
