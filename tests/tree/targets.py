"""What the processes of these tests do. Found by name, so that they can be spawned.

Each takes the address of the test's ear first, and that of whoever begins it second.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from tests.tree.ear import Ear, Words, tell
from vllm_ashutdown.core.files import ledger
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Outcome, Phase, PhaseRecord
from vllm_ashutdown.core.report import ProcessEnd, RequestCounts, ShutdownReport
from vllm_ashutdown.core.trigger import Trigger
from vllm_ashutdown.tree import child, interrupt, lifeline
from vllm_ashutdown.tree.child import Child, Invitation
from vllm_ashutdown.tree.ending import end, leaving, staying_after
from vllm_ashutdown.tree.entry import Entry
from vllm_ashutdown.tree.home import Home
from vllm_ashutdown.tree.member import Member
from vllm_ashutdown.tree.message import encode
from vllm_ashutdown.tree.place import home, take_in

Run = Callable[..., None]


@dataclass
class Kid:
    """A process that was begun, has arrived, and waits for a word."""

    process: Any
    member: Member
    at: str

    @property
    def pid(self) -> int:
        return self.member.pid

    def say(self, kind: str, **words: Any) -> None:
        tell(self.at, kind, **words)


# -- beginning processes -------------------------------------------------------


def a_home() -> Home:
    here = home()
    assert here is not None
    return here


def a_tie() -> Child:
    tie = child.current()
    assert tie is not None
    return tie


def begin(method: str, run: Run, ear: str, *args: Any, name: str = "") -> Kid:
    """Begins a child of this process, and returns once it is known here."""
    a_home()
    meet = Ear()
    process: Any = multiprocessing.get_context(method).Process(  # type: ignore[attr-defined]
        target=Entry(run), args=(ear, meet.address, *args), name=name or run.__name__
    )
    process.start()
    take_in([process])
    words = meet.hear("ready")
    meet.close()
    fence()
    return Kid(process, Member.parse(words["member"]), words["at"])


def fence() -> None:
    """Returns when all who came here before are let in, and all they said is read."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(a_home().invitation.address)
        stranger.send(encode({"is": "talk", "token": "none"}))
        stranger.recv(1)


def ready(meet: str) -> Ear:
    mine = Ear()
    member = Member.here(multiprocessing.current_process().name)
    tell(meet, "ready", member=member.plain(), at=mine.address)
    return mine


def obey(ear: str, mine: Ear) -> None:
    """Does what it is told, until that is to leave."""
    pid = os.getpid()

    def told(message: Words) -> None:
        allowance = a_tie().allowance
        left = None if allowance is None else allowance.left()
        tell(ear, "told", pid=pid, message=message, left=left)

    while True:
        words = mine.hear()
        match words["is"]:
            case "ping":
                tell(ear, "pong", pid=pid, told=a_tie().told.is_set())
            case "report":
                a_tie().report(words["signal"])
            case "send":
                a_tie().send(words["message"])
            case "make":
                ledger.remember(words["path"])
                Path(words["path"]).touch()
                tell(ear, "made", pid=pid)
            case "on stop":
                a_tie().on_stop(told)
            case "leave":
                return


# -- children ------------------------------------------------------------------


def echo(ear: str, meet: str) -> None:
    """Has no idea of signals, like a vLLM that still starts."""
    obey(ear, ready(meet))


def note_meanings(ear: str) -> None:
    def meant(number: int, frame: object) -> None:
        main = threading.current_thread() is threading.main_thread()
        tell(ear, "meant", pid=os.getpid(), signal=number, main=main)

    for number in child.SIGNALS:
        a_tie().means(number, meant)


def noting(ear: str, meet: str) -> None:
    """Tells what a signal would have vLLM do, and carries on."""
    note_meanings(ear)
    obey(ear, ready(meet))


def tidying(ear: str, meet: str) -> None:
    """The same, past the moment when vLLM gives signals their default back."""
    note_meanings(ear)
    for number in child.SIGNALS:
        a_tie().means(number, signal.SIG_DFL)
    obey(ear, ready(meet))


def deaf(ear: str, meet: str) -> None:
    for number in child.SIGNALS:
        a_tie().means(number, lambda number, frame: None)
    obey(ear, ready(meet))


def sound_asleep(ear: str, meet: str) -> None:
    """Begins to wait in the very moment in which it is signalled."""
    note_meanings(ear)
    interrupt._send = once_slept_through(interrupt._send)
    ready(meet)
    threading.Event().wait()


def once_slept_through(send: Callable[[int], None]) -> Callable[[int], None]:
    """``send``, but the first time the main thread is not woken by it.

    Raised on another thread, a signal has its handler due as always, and nothing wakes
    the thread that has to run it.
    """
    sends = iter([signal.raise_signal])

    def send_by_turns(number: int) -> None:
        next(sends, send)(number)

    return send_by_turns


def stuck(ear: str, meet: str) -> None:
    """In native code that does not let go of the interpreter's lock."""
    ready(meet)
    ctypes.PyDLL(None).sleep(60)


def in_group(ear: str, meet: str, method: str) -> None:
    """Leads a process group of its own, with two children."""
    os.setpgid(0, 0)
    middle(ear, meet, method, "echo", "echo")


def middle(ear: str, meet: str, method: str, *names: str) -> None:
    """Has children of its own, and ends them before it leaves."""
    kids = [begin(method, RUNS[name], ear) for name in names]

    def leave(number: int, frame: object) -> None:
        for one in end([kid.process for kid in kids], 5.0):
            a_tie().send({"is": "ended", "end": structs.asdict(one)})
        raise SystemExit(0)

    for number in child.SIGNALS:
        a_tie().means(number, leave)
    mine = ready(meet)
    for kid in kids:
        tell(ear, "below", member=kid.member.plain(), at=kid.at)
    obey(ear, mine)


def lasting(ear: str, meet: str, method: str) -> None:
    """Like one that the kernel takes long to end: it hangs on nobody."""
    for line in a_tie()._lines:
        fcntl.fcntl(line, fcntl.F_SETFL, 0)
    middle(ear, meet, method, "echo")


def hasty(ear: str, meet: str, method: str) -> None:
    """Leaves as soon as its child says that it leaves, which takes that one longer."""
    kid = begin(method, lingering, ear)

    def leave(number: int, frame: object) -> None:
        assert staying_after([kid.process], 10.0) == []
        one = ProcessEnd("lingering", kid.pid, leaving(kid.process))
        a_tie().send({"is": "ended", "end": structs.asdict(one)})
        os._exit(0)

    a_tie().means(signal.SIGTERM, leave)
    mine = ready(meet)
    tell(ear, "below", member=kid.member.plain(), at=kid.at)
    obey(ear, mine)


def above_middle(ear: str, meet: str, method: str) -> None:
    """Two levels below it."""
    kid = begin(method, middle, ear, method, "noting")
    mine = ready(meet)
    obey(ear, mine)
    kid.process.kill()


def lingering(ear: str, meet: str) -> None:
    """Says that it leaves, and then is longer at it than anyone would wait."""
    mine = ready(meet)
    a_tie().tell_leaving(5)
    obey(ear, mine)


def with_helper(ear: str, meet: str) -> None:
    """Has forked something that it tells nobody of, and that lives on."""
    tell(ear, "helper", member=forked_helper().plain())
    obey(ear, ready(meet))


def forked_helper() -> Member:
    """A process that sleeps, as a program may fork one; it leaves on any signal."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            threading.Event().wait(60)
        os._exit(3)
    return Member.of(pid, "helper")


def with_worker(ear: str, meet: str, *, meaning: bool) -> None:
    """Has a child by ``multiprocessing`` alone, which it terminates when told."""
    if meaning:
        note_meanings(ear)
    mine = ready(meet)
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=work, args=(mine.address,))
    worker.start()
    mine.hear("works")  # a signal in the middle of a fork is lost
    mine.hear("terminate")
    worker.terminate()
    if meaning:
        mine.hear("leave")
        worker.kill()
    worker.join()
    tell(ear, "worker", pid=worker.pid, code=worker.exitcode)
    obey(ear, mine)


def work(at: str) -> None:
    """Waits for signals, and cannot sleep one through: each is a byte to read too."""
    heard, rings = os.pipe()
    os.set_blocking(rings, False)
    signal.set_wakeup_fd(rings)
    tell(at, "works")
    while True:
        os.read(heard, 64)


def signalled_in_fork(ear: str, meet: str) -> None:
    """Forks a process that is signalled before it can forsake anything."""
    mine = ready(meet)
    mine.hear("fork")
    tie, forsake = a_tie(), child.forsake

    def late() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        forsake()

    child.forsake = late
    pid = os.fork()
    if pid == 0:
        os._exit(5)
    child.forsake = forsake
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert a_tie() is tie
    tell(ear, "forked", code=code)
    obey(ear, mine)


def quick(ear: str, meet: str) -> None:
    """Gone as soon as it is there."""
    ready(meet).close()


# -- servers and cores ---------------------------------------------------------


def server(ear: str, meet: str, patience: int, refused: int) -> None:
    """Leaves at the ``patience``-th word to stop, with a report; never if it is 0."""
    words: list[Words] = []
    leave = threading.Event()

    def told(message: Words) -> None:
        words.append(message)
        tell(ear, "told", pid=os.getpid(), message=message)
        if len(words) == patience:
            leave.set()

    a_tie().on_stop(told)
    ready(meet)
    leave.wait()
    a_tie().send({"is": "report", "report": a_report(refused).to_json()})
    tell(ear, "leaving", pid=os.getpid())


def slow_to_close(ear: str, meet: str) -> None:
    """A server that needs no core any more, and closes HTTP until it is told to go."""
    leave = threading.Event()
    a_tie().on_stop(lambda _: leave.set())
    mine = ready(meet)
    leave.wait()
    a_tie().tell_past_the_core()
    mine.hear("go")
    a_tie().send({"is": "report", "report": a_report(2).to_json()})
    a_tie().tell_leaving(0)
    os._exit(0)


def slow_to_go(ear: str, meet: str) -> None:
    """A server that has said that it leaves, and is over when it is told to go."""
    leave = threading.Event()
    a_tie().on_stop(lambda _: leave.set())
    mine = ready(meet)
    leave.wait()
    a_tie().send({"is": "report", "report": a_report(2).to_json()})
    a_tie().tell_leaving(0)
    mine.hear("go")
    os._exit(0)


def core(ear: str, meet: str) -> None:
    def leave(number: int, frame: object) -> None:
        tell(ear, "core", pid=os.getpid())
        raise SystemExit(0)

    a_tie().means(signal.SIGTERM, leave)
    obey(ear, ready(meet))


def a_report(refused: int) -> ShutdownReport:
    phases = [
        PhaseRecord(Phase.DRAIN, 1.0, 0.5, Outcome.EXPIRED, "", 0.1 * refused),
        PhaseRecord(Phase.CORE, 1.0, 0.5, Outcome.FAILED, "no core of it", 0.5),
        PhaseRecord(Phase.HTTP, 1.0, 0.1, Outcome.DONE, "", 0.5),
    ]
    return ShutdownReport(
        trigger=Trigger.call("a test"),
        mode=Mode.DRAIN,
        final_mode=Mode.DRAIN,
        seconds=1.0,
        phases=tuple(phases),
        requests=RequestCounts(1, 2, refused),
    )


RUNS: dict[str, Run] = {
    run.__name__: run for run in (echo, noting, deaf, stuck, middle, lasting, quick)
}


# -- programs on top of a tree, to be killed -----------------------------------


def family(ear: str, method: str, runs: tuple[tuple[Any, ...], ...]) -> None:
    """Begins one child after the other, and sleeps."""
    for name, *args in runs:
        kid = begin(method, RUNS[name], ear, *args)
        tell(ear, "child", member=kid.member.plain(), at=kid.at)
    threading.Event().wait(60)


def from_thread(ear: str, method: str) -> None:
    """Begins a child from a thread that is over right after that."""
    kids: list[Kid] = []
    thread = threading.Thread(
        target=lambda: kids.append(begin(method, echo, ear)), daemon=True
    )
    thread.start()
    thread.join()
    tell(ear, "child", member=kids[0].member.plain(), at=kids[0].at)
    threading.Event().wait(60)


def with_fork(ear: str, method: str) -> None:
    """Begins a child, forks something else, and begins another child."""
    kids = [begin(method, echo, ear)]
    helper = forked_helper()
    kids.append(begin(method, echo, ear))
    for kid in kids:
        tell(ear, "child", member=kid.member.plain(), at=kid.at)
    tell(ear, "helper", member=helper.plain())
    threading.Event().wait(60)


def host(ear: str, *, listens: bool) -> None:
    """Only has a home, and tells where it is."""
    here = a_home()
    if listens:
        here.door.watch()
    one = here.invitation
    tell(ear, "host", parent=one.parent.plain(), home=one.address, token=one.token)
    threading.Event().wait(60)


# -- what arrives by its own hand ----------------------------------------------


def arriving(
    ear: str,
    invitation: Invitation | None,
    *,
    lifelines: bool = True,
    timeout: float | None = None,
    term: str = "",
) -> None:
    """Waits for a word before it arrives; leaves with 5 if it could not.

    Args:
        ear: The test's.
        invitation: To whom; ``None`` is to whoever forked this process.
        lifelines: Whether the kernel can do them.
        timeout: The default timeout of sockets in this program.
        term: "blocked" or "ignored", what SIGTERM is until it has arrived.
    """
    if not lifelines:
        lifeline.hang_on = lambda connection: False
    if term == "blocked":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    elif term == "ignored":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    socket.setdefaulttimeout(timeout)
    mine = Ear()
    tell(ear, "waiting", at=mine.address)
    mine.hear("arrive")
    assert invitation is not None
    settle_in = Child.settle_in

    def note_and_settle_in(tie: Child) -> None:
        note_meanings(ear)  # it may be told in the very next moment
        settle_in(tie)

    Child.settle_in = note_and_settle_in  # type: ignore[method-assign]
    if child.arrive(invitation, "arriving") is None:
        os._exit(5)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    tell(ear, "arrived", at=mine.address)
    obey(ear, mine)


def hanging_on(ear: str, *, cut: bool) -> None:
    """Hangs on a connection that is cut, or is not."""
    line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if cut:
        other.close()
    tell(ear, "hung on", could=lifeline.hang_on(line), cut=lifeline.is_cut(line))


def someone_else(invitation: Invitation) -> None:
    """Another user of the machine, who knows everything; leaves with 4 if sent off."""
    os.setgid(65534)
    os.setuid(65534)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(5)
        connection.connect(invitation.address)
        member = Member.here("someone else").plain()
        hello = {"is": "talk", "token": invitation.token, "member": member}
        with contextlib.suppress(BrokenPipeError):
            connection.send(encode(hello))
        try:
            sent_off = connection.recv(1) == b""
        except ConnectionResetError:
            sent_off = True
    os._exit(4 if sent_off else 0)
