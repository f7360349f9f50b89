"""What a parent knows of one child."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable

from .member import Member
from .message import Message

Decide = Callable[[Member, int], bool]
"""Takes a child that was signalled, and the signal.

True if the child carries on and whoever answers sees to the rest; False if the signal
shall mean what it means in vLLM.
"""


class Record:
    """What is known of one child.

    Attributes:
        pid: Its process id.
        name: ``multiprocessing``'s name for it.
        start: When it began, by the kernel's clock; a pid comes back one day.
        member: The process itself, once it has arrived.
        below: Its own children, as far as it has told, by pid.
        ended: What it told of how those ended.
        made: What it and those below it made under a name that others see: kind, path.
        said: Everything else that it said, for whoever began it.
        told_where: Set when it has written down what its threads are at.
        gone: Set when its end of the connection is closed.
        past_the_core: It has said that it needs no core any more.
        leaving: The exit code with which it said that it leaves. By then everything
            is given back but its memory, and that takes the kernel a while.
    """

    def __init__(self, pid: int, name: str) -> None:
        self.pid = pid
        self.name = name
        self.start = 0
        self.member: Member | None = None
        self.below: dict[int, Member] = {}
        self.ended: list[Message] = []
        self.made: dict[str, str] = {}
        self.said: list[Message] = []
        self.gone = threading.Event()
        self.told_where = threading.Event()
        self.past_the_core = False
        self.leaving: int | None = None
        self.decide: Decide | None = None
        self.on_gone: Callable[[], None] | None = None
        self.stop: Message | None = None
        self.wanted = False
        self.adopted = False
        self.talk: socket.socket | None = None


def default_decision(member: Member, number: int) -> bool:
    """Of a program that uses vLLM as a library and has its own ideas of signals.

    Ctrl-C goes to the whole group, and what it means is the program's to say: a
    child that is needed for an answer to it carries on.
    """
    return number == signal.SIGINT
