"""This process as a child: who told it what, and what a signal means here.

One process decides, the top of the tree. A signal that reaches a child directly
(Ctrl-C and systemd signal the whole group) is reported upwards, and the child carries
on until its parent tells it to stop. Then it does what vLLM has it do on a signal.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from msgspec import Struct

from ..exit_code import ExitCode
from . import lifeline
from .interrupt import Interrupt
from .member import Member
from .message import Message, encode, receive, send

logger = logging.getLogger("vllm.ashutdown")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""They mean the same, in any process."""

PARENT_SECONDS = 0.5
"""For a parent that does not answer to be over: its sockets close before it is."""

Meaning = Callable[[int, FrameType | None], Any]


class Invitation(Struct, frozen=True):
    """Where a child finds its parent.

    Attributes:
        address: Of the parent's socket; abstract, so it leaves no file.
        token: Tells children from strangers who have read the address.
        parent: The parent itself.
        above: The same of the parent's own parent, and so on, up to the top.
    """

    address: str
    token: str
    parent: Member
    above: Invitation | None = None


class Allowance(Struct, frozen=True):
    """What the parent leaves this process for its stop.

    Attributes:
        seconds: To be gone in.
        drain: Of these, for requests that still run.
        at: When it was told, on ``time.monotonic``.
    """

    seconds: float
    drain: float
    at: float

    def left(self) -> float:
        """Seconds left of all of it, never negative."""
        return max(0.0, self.at + self.seconds - time.monotonic())

    @property
    def drain_deadline(self) -> float:
        """When nothing may run any more, on ``time.monotonic``."""
        return self.at + self.drain


class Child:
    """The child's end of what ties it to its parent."""

    def __init__(
        self,
        member: Member,
        invitation: Invitation,
        talk: socket.socket,
        lines: Sequence[socket.socket],
    ) -> None:
        self.member = member
        self.invitation = invitation
        self.allowance: Allowance | None = None
        self.told = threading.Event()
        self.pass_on: Callable[[Message], None] | None = None
        self._talk, self._lines = talk, lines
        self._meanings: dict[int, Meaning] = {}
        self._before: dict[int, Any] = {}
        self._interrupt = Interrupt()
        self._acted = False
        self._on_stop: Callable[[Message], None] | None = None
        self.listeners: dict[str, Callable[[Message], None]] = {}
        self._stop: Message | None = None
        self._lock = threading.Lock()

    def settle_in(self) -> None:
        """Takes over the signals and begins to listen; on the main thread."""
        # A fork inherits the wakeup descriptor of its parent's event loop: each
        # signal here would look like one there.
        signal.set_wakeup_fd(-1)
        self._interrupt.prepare()
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        for line in self._lines:
            lifeline.hang_on(line)
        threading.Thread(
            target=self._listen, name="vllm-ashutdown-child", daemon=True
        ).start()

    # -- what a signal means ---------------------------------------------------

    def means(self, number: int, handler: Any) -> None:
        """Notes what vLLM has a signal do here, once it is told to stop.

        Giving a signal its default back, as vLLM does before it cleans up, is no
        meaning: a signal in the middle of that must not end it half way.
        """
        if callable(handler):
            self._meanings[number] = handler

    def on_stop(self, callback: Callable[[Message], None]) -> None:
        """Calls ``callback`` when told to stop, in place of a signal's meaning.

        It is called on the listening thread, each time that the parent raises its
        word; for a word that has come already at once, by whoever sets it.
        """
        with self._lock:
            self._on_stop, told = callback, self._stop
        if told is not None:
            callback(told)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Between two bytecodes of the main thread, so nothing here may lock.
        if os.getpid() != self.member.pid:
            # Forked a moment ago, it has not forsaken this yet: it must not report
            # that its parent was signalled.
            self.forsake()
            os.kill(os.getpid(), number)
        elif (due := self._interrupt.take()) is not None:
            self._mean(due, frame)
        elif not self.told.is_set():
            self.report(number)

    def report(self, number: int) -> None:
        """Tells the parent that a signal reached this process directly."""
        self.send({"is": "signalled", "member": self.member.plain(), "signal": number})

    def _mean(self, number: int, frame: FrameType | None) -> None:
        meaning = self._meanings.get(number)
        if meaning is None:
            raise SystemExit(ExitCode.STOPPED)  # vLLM has set none yet: it starts
        meaning(number, frame)

    # -- talking ---------------------------------------------------------------

    def send(self, message: Message) -> bool:
        """Says something to the parent, from any thread or a signal handler."""
        return send(self._talk, message)

    def forsake(self) -> None:
        """Cuts the ties, in a forked process that is not the one they belong to.

        A signal means there what it would without us: nobody reads its reports.
        """
        for connection in (self._talk, *self._lines):
            with contextlib.suppress(OSError):
                connection.close()
        for number in SIGNALS:
            if signal.getsignal(number) == self._on_signal:
                before = self._before.get(number)
                signal.signal(number, self._meanings.get(number, before) or 0)

    def tell_made(self, kind: str, path: str) -> None:
        """Tells all further up what was made here under a name that outlives it.

        Each of them by itself: a parent that is halted, or killed a moment later, would
        not pass it on, and nobody else would know the name. It is asked to where that
        cannot be, for want of a descriptor, say. Never waits.
        """
        if os.getpid() != self.member.pid:
            return  # forked from it, by someone who has inherited the ledger
        words = {"is": "made", "kind": str(kind), "path": path}
        unheard = False
        below, above = self.invitation.parent, self.invitation.above
        while above is not None:
            hello = words | {"through": below.plain()}
            try:
                _connect(above, "made", self.member, hello, wait=False).close()
            except OSError:
                unheard = True
            below, above = above.parent, above.above
        self.send(words | ({"pass on": True} if unheard else {}))

    def tell_past_the_core(self) -> None:
        """Tells the parent that nothing here needs an engine core any more."""
        self.send({"is": "past the core"})

    def tell_leaving(self, code: int) -> None:
        """Tells the parent that all is given back here but memory. The last word."""
        self.send({"is": "leaving", "code": code})

    def _listen(self) -> None:
        while True:
            message = receive(self._talk)
            if message is None:
                # The kernel is faster wherever it can do it at all.
                os._exit(ExitCode.PARENT_DIED)
            try:
                self._hear(message)
            except (KeyError, TypeError, ValueError) as error:
                # It must go on to listen: it also hears that the parent is gone.
                logger.warning("[shutdown] the parent said %r: %s", message, error)

    def _hear(self, message: Message) -> None:
        if message.get("pid", self.member.pid) != self.member.pid:
            if self.pass_on is not None:
                self.pass_on(message)
            return
        if message.get("do") == "stop":
            if "seconds" in message:
                allowance = Allowance(
                    float(message["seconds"]),
                    float(message.get("drain", 0.0)),
                    time.monotonic(),
                )
                # Said again, it never gives more time than it did.
                if self.allowance is None or allowance.left() < self.allowance.left():
                    self.allowance = allowance
            self.told.set()
            with self._lock:
                self._stop, callback = message, self._on_stop
            if callback is not None:
                callback(message)
            else:
                self._act_on(signal.SIGTERM)
        elif message.get("do") == "as stock":
            self._act_on(int(message["signal"]))
        elif message.get("do") == "tell where":
            # Before it is killed for not leaving: what each of its threads is at.
            faulthandler.dump_traceback(sys.__stderr__ or 2)
            self.send({"is": "told where"})
        elif message.get("do") in self.listeners:
            self.listeners[message["do"]](message)

    def _act_on(self, number: int) -> None:
        # On the main thread, as vLLM has written its handlers for. And once: in stock
        # the default is back by then, and a second time would end the cleanup half way.
        if self._acted:
            return
        self._acted = True
        self._interrupt.send(number)


class _Place:
    """What this process is a child of."""

    tie: Child | None = None


def current() -> Child | None:
    """This process as a child; ``None`` if no parent with a home began it."""
    return _Place.tie


def arrive(invitation: Invitation, name: str) -> Child | None:
    """Ties this process to its parent; at the first line of its work.

    Returns:
        ``None`` if the parent does not answer: then a signal means what it means
        without us.
    """
    member = Member.here(name)
    with contextlib.ExitStack() as opened:
        try:
            talk, line = [
                opened.enter_context(_connect(invitation, role, member))
                for role in ("talk", "line")
            ]
        except OSError as error:
            _could_not(invitation, error)
            return None  # with none of them open, or the parent thinks it is there
        opened.pop_all()
    lines = [line, *_lines_to(invitation.above, member)]
    _Place.tie = Child(member, invitation, talk, lines)
    _Place.tie.settle_in()
    return _Place.tie


def _connect(
    invitation: Invitation,
    role: str,
    member: Member,
    words: Message | None = None,
    *,
    wait: bool = True,
) -> socket.socket:
    hello = {"is": role, "token": invitation.token, "member": member.plain()}
    hello |= words or {}
    with contextlib.ExitStack() as opened:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened.enter_context(connection)
        # Whatever the program has made the default.
        connection.settimeout(None if wait else 0.0)
        connection.connect(invitation.address)
        connection.sendall(encode(hello))
        opened.pop_all()
    return connection


def _lines_to(above: Invitation | None, member: Member) -> Iterator[socket.socket]:
    """A lifeline of its own to each process further up.

    A process closes its connections only after the kernel has taken its memory back.
    One after the other, a tree would take the sum of that to end, and not the longest.
    """
    while above is not None:
        # Where that process is gone, the parent is about to be.
        with contextlib.suppress(OSError):
            yield _connect(above, "line", member)
        above = above.above


def forsake() -> None:
    """Closes what a forked child has inherited of its parent's own ties.

    Else the parent's parent would not see the parent go.
    """
    if _Place.tie is not None:
        _Place.tie.forsake()
        _Place.tie = None


def _could_not(invitation: Invitation, error: OSError) -> None:
    if invitation.parent.gone_within(PARENT_SECONDS):
        os._exit(ExitCode.PARENT_DIED)  # it died before this process could arrive
    logger.warning(
        "[shutdown] no tie to the parent process, %s: %s. Signals mean here what "
        "they mean in vLLM without vllm-ashutdown.",
        invitation.parent,
        error,
    )
