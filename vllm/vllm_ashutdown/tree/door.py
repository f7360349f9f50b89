"""Where children come in: who they say they are, what each says, and when it is gone.

A child finds its parent by an address that it is born with, the same under fork,
spawn and forkserver. Each opens two connections: one to talk over, and one on which
nobody ever speaks, its lifeline.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import selectors
import socket
import struct
import threading
import time
from typing import Any, Protocol

from .member import Member
from .message import Message, encode, receive
from .record import Record

logger = logging.getLogger("vllm.ashutdown")

ACCEPT_PAUSE = 0.1
"""Seconds until the next try after a child could not be let in."""


class Host(Protocol):
    """Whose door it is. All of it is called in the door's own thread."""

    def welcome(
        self, member: Member, hello: Message, connection: socket.socket
    ) -> Record | None:
        """Somebody has said who it is.

        Returns:
            Of whom all is that comes on that connection; ``None`` if nothing more is
            expected, and it is closed.
        """

    def hear(self, record: Record, message: Message) -> None:
        """It has said something.

        Raises:
            KeyError: The message lacks something; so do the next two.
            TypeError: Something in it is of another type.
            ValueError: Something in it has no meaning.
        """

    def gone(self, record: Record, connection: socket.socket) -> None:
        """The kernel, or the child itself, has closed the other end."""


class Door:
    """The address of a process, and a thread that listens there.

    Args:
        host: Whose it is.
        fork: Held while somebody is let in, and by whoever forks: see :meth:`forsake`.

    Attributes:
        address: Where children connect to, in the abstract namespace.
        token: What they must say, so that nobody else comes in.
        thread: What listens, once it does.
    """

    def __init__(self, host: Host, fork: threading.RLock) -> None:
        self._host = host
        self._fork = fork
        self.address = f"\0vllm-ashutdown-{os.getpid()}-{secrets.token_hex(8)}"
        self.token = secrets.token_hex(16)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.address)
        self._listener.listen(256)
        # Whatever the program has made the default; nobody waits in it.
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.thread: threading.Thread | None = None

    def watch(self) -> None:
        """Begins to listen, if nobody does. After children were forked, not before."""
        with self._lock:
            if self.thread is not None:
                return
            self.thread = threading.Thread(
                target=self._listen, name="vllm-ashutdown-home", daemon=True
            )
        self.thread.start()

    def caught_up(self, seconds: float) -> bool:
        """Waits until whoever was at the door before this was called has been heard.

        What a child says over its own connection is read in its turn; that is heard
        to the end when its record says that it is gone.

        Returns:
            False if that takes longer than ``seconds``, or nobody reads.
        """
        if self.thread is None or threading.current_thread() is self.thread:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                # It is sent off behind all who were at the door before it.
                stranger.setblocking(False)
                stranger.connect(self.address)
                stranger.send(encode({"is": "wait"}))
                stranger.settimeout(max(0.0, seconds))
                return stranger.recv(1) == b""
        except OSError:  # also where no descriptors are left
            return False

    def forsake(self) -> None:
        """Closes what a forked child has inherited of it.

        It would keep its siblings' lifelines from being cut.
        """
        ends: list[Any] = [self._selector, self._listener, *self._connections]
        for inherited in ends:
            with contextlib.suppress(OSError):
                inherited.close()

    # -- in its thread ---------------------------------------------------------

    def _listen(self) -> None:
        while True:
            for key, _ in self._selector.select():
                connection: Any = key.fileobj
                if connection is self._listener:
                    self._accept()
                elif key.data is None:
                    self._meet(connection)
                else:
                    self._hear(connection, key.data)

    def _accept(self) -> None:
        try:
            with self._fork:  # no fork between the two
                connection, _ = self._listener.accept()
                self._connections.add(connection)
        except BlockingIOError:
            return
        except OSError as error:  # no descriptors left, say
            logger.warning("[shutdown] a child process is not heard: %s", error)
            # It stands at the door and there is no event for a descriptor that is free.
            time.sleep(ACCEPT_PAUSE)
            return
        connection.settimeout(None)
        self._selector.register(connection, selectors.EVENT_READ)
        if not _is_own(connection):
            self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()
        self._connections.discard(connection)

    def _meet(self, connection: socket.socket) -> None:
        hello = receive(connection)
        member = None if hello is None else self._guest(hello)
        record = None
        if hello is not None and member is not None:
            record = self._host.welcome(member, hello, connection)
        if record is None:
            self._close(connection)
        else:
            self._selector.modify(connection, selectors.EVENT_READ, record)

    def _guest(self, hello: Message) -> Member | None:
        """Who says ``hello``; ``None`` for a stranger."""
        token = str(hello.get("token")).encode(errors="replace")
        if not secrets.compare_digest(token, self.token.encode()):
            return None
        try:
            return Member.parse(hello.get("member"))
        except ValueError:
            return None

    def _hear(self, connection: socket.socket, record: Record) -> None:
        message = receive(connection)
        if message is None:
            self._close(connection)
            self._host.gone(record, connection)
            return
        try:
            self._host.hear(record, message)
        except (KeyError, TypeError, ValueError) as error:
            # Of another version of this package, at the worst.
            logger.warning("[shutdown] %s said %r: %s", record.name, message, error)


def _is_own(connection: socket.socket) -> bool:
    """Whether a process of the same user, or root's, is there, by the kernel's word.

    An abstract address has no permissions: anyone in the network namespace finds it.
    """
    size = struct.calcsize("3i")
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _pid, user, _group = struct.unpack("3i", said)
    return user in (0, os.geteuid())
