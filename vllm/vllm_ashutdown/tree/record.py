"""What a parent knows of one child."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from .member import Member
from .message import Message

Decide = Callable[[Member, int], bool]
"""Takes a child that was signalled, and the signal.

True if the child carries on and whoever answers sees to the rest; False if the signal
shall mean what it means in vLLM.
"""


@dataclass(eq=False, repr=False)
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
        leaving: The exit code with which it said that it leaves. By then everything
            is given back but its memory, and that takes the kernel a while.
    """

    pid: int
    name: str
    start: int = 0
    member: Member | None = None
    below: dict[int, Member] = field(default_factory=dict)
    ended: list[Message] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)
    said: list[Message] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)
    told_where: threading.Event = field(default_factory=threading.Event)
    leaving: int | None = None
    decide: Decide | None = None
    on_gone: Callable[[], None] | None = None
    stop: Message | None = None
    wanted: bool = False
    adopted: bool = False
    talk: socket.socket | None = None


def default_decision(member: Member, number: int) -> bool:
    """Of a program that uses vLLM as a library and has its own ideas of signals.

    Ctrl-C goes to the whole group, and what it means is the program's to say: a
    child that is needed for an answer to it carries on.
    """
    return number == signal.SIGINT
