"""What a server is put through: how it is stopped, when, and under what load."""

from __future__ import annotations

import enum
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .server import Server

START_SECONDS = 600.0
"""No start takes longer, on however slow a machine."""

SECOND_SECONDS = 0.2
"""From the first signal to the second: two at once are one for the kernel."""

FIRST_TOKENS = 4
"""So many tokens of each stream come before the stop."""

LIMIT_SECONDS = 30.0
"""Beyond the drain time; a server that takes longer hangs."""


class How(enum.StrEnum):
    """The ways to stop a server."""

    TERM = "term"
    INT = "int"
    TERM_TWICE = "term-twice"
    KILL = "kill"

    @property
    def is_orderly(self) -> bool:
        """The server is asked, and can answer."""
        return self is not How.KILL

    @property
    def number(self) -> signal.Signals:
        """The signal that is sent."""
        if self is How.KILL:
            return signal.SIGKILL
        return signal.SIGINT if self is How.INT else signal.SIGTERM


class Whom(enum.StrEnum):
    """Who gets the signal."""

    TOP = "top"
    """The process that was started, as ``kill PID`` and Kubernetes do it."""
    GROUP = "group"
    """All of its group, as Ctrl-C and systemd do it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One stop.

    Attributes:
        command: The server's, the program first.
        drain: Seconds that it lets requests run on, by its own options.
        how: The way in which it is stopped.
        whom: Who is told.
        streams: How many answers are to be in flight.
        tokens: How long each is to be; no more than the model allows.
        after: Seconds from the first tokens of all streams to the stop.
        at: Seconds from the start to the stop instead, ready or not, without streams.
        limit: Seconds from the stop until a server counts as one that hangs.
        start_limit: Seconds until one counts as one that does not start.
        environment: On top of the caller's.
    """

    command: Sequence[str]
    drain: float = 0.0
    how: How = How.TERM
    whom: Whom = Whom.TOP
    streams: int = 8
    tokens: int = 4096
    after: float = 0.0
    at: float | None = None
    limit: float | None = None
    start_limit: float = START_SECONDS
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def most(self) -> float:
        """What the stop may take, in seconds."""
        return self.drain + LIMIT_SECONDS if self.limit is None else self.limit

    @property
    def words(self) -> str:
        """The stop, for people."""
        signals = self.how.number.name
        if self.how is How.TERM_TWICE:
            signals += " twice"
        return f"{signals} to {'its whole group' if self.whom is Whom.GROUP else 'it'}"

    def stop(self, server: Server) -> float:
        """Does it; returns when it began, by the monotonic clock."""
        group = self.whom is Whom.GROUP
        at = server.send(self.how.number, group=group)
        if self.how is How.TERM_TWICE and not server.ended.wait(SECOND_SECONDS):
            server.send(self.how.number, group=group)
        return at
