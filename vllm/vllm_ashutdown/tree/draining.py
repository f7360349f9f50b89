"""One drain of several API servers: their launcher puts what they say in one order.

A request to prepare a drain, or to take it back, reaches one server. That tells its
launcher, who tells all of them, that one too, and each acts when it hears of it: so all
do the same things in the same order. Who is idle says so in the same way, and each
knows when the last one is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .home import Home
from .message import Message
from .record import Record

WORD = "drain"


class DrainRelay:
    """The launcher's part. It is called on the thread that listens to children."""

    def __init__(self, here: Home, servers: Sequence[Any]) -> None:
        """Begins to relay what ``servers``, children of ``here``, say."""
        self._here = here
        self._pids = [process.pid for process in servers]
        self._round = 0
        self._prepared = False
        here.listeners[WORD] = self._hear

    def _hear(self, record: Record, message: Message) -> None:
        if "idle" in message:
            self._tell({"idle": record.pid, "round": int(message["round"])})
            return
        wanted = bool(message["prepare"])
        if wanted is not self._prepared:
            self._prepared = wanted
            self._round += 1
        self._tell({"prepare": wanted, "round": self._round, "servers": self._pids})

    def _tell(self, words: Message) -> None:
        for pid in self._pids:
            self._here.tell(pid, {"do": WORD, **words})
