"""The API servers of one launcher, as each of them knows of the drain of all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol


class Own(Protocol):
    """This server's own part in it."""

    def prepare(self) -> None:
        """Lets nobody in."""

    def withdraw(self) -> None:
        """Lets requests in again."""

    def own_idle(self) -> Coroutine[Any, Any, None]:
        """Returns when nothing is in flight here."""


class Peers:
    """All of them, this one too. Belongs to this server's event loop.

    Attributes:
        idle: Set when none of them has anything in flight, in a prepared drain.
    """

    def __init__(self, say: Callable[[dict[str, Any]], object]) -> None:
        """``say`` tells the launcher, who passes it on to all."""
        self.idle = asyncio.Event()
        self._say = say
        self._round = 0
        self._busy: set[int] = set()
        self._waiting: asyncio.Task[None] | None = None

    @property
    def busy(self) -> int:
        """How many of them have something in flight, or have not said yet."""
        return len(self._busy)

    def want(self, *, prepare: bool) -> None:
        """Asks all to prepare, or to take it back. Each acts when it hears of it."""
        self._say({"prepare": prepare})

    def hear(self, message: Mapping[str, Any], own: Own) -> None:
        """What the launcher has passed on."""
        number = int(message["round"])
        if "idle" in message:
            if number == self._round:  # and not of a drain that was taken back
                self._busy.discard(int(message["idle"]))
                if not self._busy:
                    self.idle.set()
            return
        if number == self._round:
            return  # somebody has asked again
        self._round = number
        self.idle.clear()
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if message["prepare"]:
            self._busy = {int(pid) for pid in message["servers"]}
            own.prepare()
            self._waiting = asyncio.get_running_loop().create_task(self._report(own))
        else:
            self._busy = set()
            own.withdraw()

    async def _report(self, own: Own) -> None:
        number = self._round
        await own.own_idle()
        self._say({"idle": True, "round": number})
