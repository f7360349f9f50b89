"""This process as a parent: its children, what they say, and what they are told.

How they come in and are listened to is the door's; that there is one, the place's.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ..core.claims import claims
from . import child
from .child import Invitation
from .door import Door
from .member import Member
from .message import Message, send
from .part import Part
from .record import Decide, Record, default_decision

logger = logging.getLogger("vllm.ashutdown")


class Home:
    """Where this process's children arrive."""

    def __init__(self, lock: threading.RLock) -> None:
        here = Member.here(multiprocessing.current_process().name)
        self.door = Door(self, lock)
        up = child.current()
        above = None if up is None else up.invitation
        self.invitation = Invitation(self.door.address, self.door.token, here, above)
        self._records: dict[int, Record] = {}
        self._bells: set[int] = set()
        self._ended: dict[int, float] = {}
        self._begun: weakref.WeakKeyDictionary[Any, Part] = weakref.WeakKeyDictionary()
        self.by_default: Decide = default_decision
        self.listeners: dict[str, Callable[[Record, Message], None]] = {}
        self._lock = threading.RLock()
        if up is not None:
            up.pass_on = self._pass_on

    # -- children --------------------------------------------------------------

    def adopt(self, process: Any, part: Part = Part.CORE) -> None:
        """Makes a started ``multiprocessing`` process a child of this home.

        From here on ``process.terminate()`` asks it over its connection, wherever
        in vLLM it is called; without a connection it stays the signal that it is.
        """
        member = Member.of(process.pid, process.name)
        record = self._record_of(member)
        if record.adopted:
            return
        record.adopted, pid = True, record.pid
        self._begun[process] = part
        popen = process._popen
        terminate, it = type(popen).terminate, weakref.ref(popen)  # see reaping

        def ask_or_terminate() -> None:
            popen = it()
            if popen is not None and popen.returncode is None and not self.ask(pid):
                terminate(popen)

        popen.terminate = ask_or_terminate
        up = child.current()
        if up is not None:
            up.send({"is": "member", "member": member.plain()})
        self.door.watch()

    def children(self, part: Part) -> list[Any]:
        """The processes of that part that this one has begun, in that order."""
        begun = [one for one, its in list(self._begun.items()) if its is part]
        return sorted(begun, key=lambda process: process.pid)

    def record(self, pid: int, name: str = "") -> Record:
        """What is known of child ``pid``."""
        with self._lock:
            record = self._records.setdefault(pid, Record(pid, name))
            record.name = name or record.name
            return record

    def _record_of(self, member: Member) -> Record:
        """What is known of exactly this child, and not of an earlier one of its pid."""
        with self._lock:
            record = self.record(member.pid, member.name)
            if record.start and member.start and record.start != member.start:
                del self._records[member.pid]
                record = self.record(member.pid, member.name)
            record.start = record.start or member.start
            return record

    def ask(self, pid: int) -> bool:
        """Tells child ``pid`` to stop.

        Returns:
            False if it is not there to be told; then it is told when it arrives.
        """
        record = self.record(pid)
        with self._lock:
            record.wanted = True
            talk = record.talk
        return talk is not None and send(talk, {"do": "stop"} | (record.stop or {}))

    def tell(self, pid: int, message: Message) -> bool:
        """Says something to child ``pid``; False if it is not there to hear it."""
        talk = self.record(pid).talk
        return talk is not None and send(talk, message)

    def ask_where(self, pid: int) -> threading.Event | None:
        """Has child ``pid`` write to stderr what each of its threads is at.

        Returns:
            What is set when it has; ``None`` if it is not there to be asked.
        """
        record = self.record(pid)
        with self._lock:
            talk = record.talk
        asked = talk is not None and send(talk, {"do": "tell where"})
        return record.told_where if asked else None

    def allow(self, pid: int, **stop: Any) -> None:
        """Notes what child ``pid`` is told along with the word to stop."""
        self.record(pid).stop = stop

    @contextlib.contextmanager
    def bell(self) -> Iterator[int]:
        """A descriptor that is ready whenever some child has said that it leaves."""
        bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        with self._lock:
            self._bells.add(bell)
        try:
            yield bell
        finally:
            with self._lock:
                self._bells.discard(bell)
            os.close(bell)

    def ended(self, pid: int) -> float | None:
        """When process ``pid`` below this one was over, on :func:`time.monotonic`.

        The kernel closes what a process has open when its memory is given back. Of
        those further down their lifelines tell. ``None`` while it is not known.
        """
        return self._ended.get(pid)

    # -- what is heard, in the door's thread ----------------------------------

    def welcome(
        self, member: Member, hello: Message, connection: socket.socket
    ) -> Record | None:
        """Takes in a child, holds a lifeline, or hears what one below has made."""
        if hello.get("is") == "made":
            self._hear_of(hello)
            return None
        self._ended.pop(member.pid, None)  # an earlier one's, of the same pid
        if hello.get("is") != "talk":
            # A lifeline, of a child or of one further down: it is held, and says no
            # more. What is known of children is not its business.
            return Record(member.pid, member.name)
        record = self._record_of(member)
        with self._lock:
            record.member, record.talk = member, connection
            wanted = record.wanted
        if wanted:
            self.ask(record.pid)
        return record

    def _hear_of(self, hello: Message) -> None:
        """What one further down has made: its own parent may not come to say so."""
        try:
            record = self._record_of(Member.parse(hello.get("through")))
            self.hear(record, hello)
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("[shutdown] a child said %r: %s", hello, error)

    def gone(self, record: Record, connection: socket.socket) -> None:
        """Notes when a process has ended, and that a child says no more."""
        self._ended.setdefault(record.pid, time.monotonic())
        if record.talk is not connection:
            return  # its lifeline
        with self._lock:
            record.talk = None
            on_gone, record.on_gone = record.on_gone, None
            record.gone.set()
        if on_gone is not None:
            on_gone()

    def hear(self, record: Record, message: Message) -> None:
        """Does what a child's word asks for; see :class:`~.door.Host` for errors."""
        kind = message.get("is")
        if kind == "signalled":
            self._signalled(record, message)
        elif kind == "member":
            member = Member.parse(message["member"])
            record.below[member.pid] = member
            up = child.current()
            if up is not None:
                up.send(message)
        elif kind == "made":
            kind, path = str(message["kind"]), str(message["path"])
            record.made[path] = kind
            up = child.current()
            if up is None:
                claims.note(kind, path)
            elif message.get("pass on"):  # else those above have been told, too
                up.send(message)
        elif kind == "ended":
            record.ended.append(message)
        elif kind == "told where":
            record.told_where.set()
        elif kind == "past the core":
            record.past_the_core = True
            self._ring()
        elif kind == "leaving":
            record.leaving = int(message["code"])
            self._ring()
        elif kind is None:
            raise ValueError("that is no message")
        elif kind in self.listeners:
            self.listeners[kind](record, message)
        else:
            record.said.append(message)

    def _ring(self) -> None:
        with self._lock:
            for bell in self._bells:
                os.eventfd_write(bell, 1)

    def _signalled(self, record: Record, message: Message) -> None:
        up = child.current()
        if up is not None:
            up.send(message)  # who is above decides
            return
        member, number = Member.parse(message["member"]), int(message["signal"])
        decide = record.decide or self.by_default
        if not decide(member, number):
            answer = {"do": "as stock", "pid": member.pid, "signal": number}
            if record.talk is not None:
                send(record.talk, answer)

    def _pass_on(self, message: Message) -> None:
        pid = int(message["pid"])
        with self._lock:
            record = self._records.get(pid)
            for one in self._records.values():
                if record is None and pid in one.below:
                    record = one  # whose own child, or further down, it is
        if record is not None and record.talk is not None:
            send(record.talk, message)

    # -- fork ------------------------------------------------------------------

    def forsake(self) -> None:
        """Closes what a forked child has inherited of its parent's home.

        And multiprocessing would end, or wait for, what this process has never begun,
        when it exits.
        """
        self.door.forsake()
        known: set[Any] = getattr(multiprocessing.process, "_children", set())
        known.difference_update(self._begun)
