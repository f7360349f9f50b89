"""A drain that is prepared: not ready, nobody let in, and nothing taken down.

What asks for it (a preStop hook, a deployment script) waits for its end, and the signal
that comes then finds nothing in flight. As long as none has come it can be taken back.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from ..core.phase import Phase
from ..core.reading import PREPARE, SERVING, Reading, of_stop
from ..core.stop import Stop
from .gate import Gate
from .peers import Peers

logger = logging.getLogger("vllm.ashutdown")


class Preparation:
    """What a server knows of its drain. Belongs to the server's event loop.

    Attributes:
        under_way: Nobody is let in, and no stop has begun.
    """

    def __init__(
        self,
        gate: Gate,
        *,
        stop: Callable[[], Stop | None],
        watch: Callable[[], None] = lambda: None,
        unwatch: Callable[[], None] = lambda: None,
        changed: Callable[[], None] = lambda: None,
        peers: Peers | None = None,
        seconds: float = math.inf,
    ) -> None:
        """Nothing is prepared.

        Args:
            gate: Of the server.
            stop: The stop of its engine, once there is one.
            watch: Begins to count what is in flight in the engine, as a stop does.
            unwatch: Ends that.
            changed: Called when it is prepared, and when it is taken back.
            peers: The servers of the same launcher, if there are several.
            seconds: How long somebody waits who does not say.
        """
        self.seconds = seconds
        self.under_way = False
        self._gate = gate
        self._stop = stop
        self._watch, self._unwatch, self._changed = watch, unwatch, changed
        self._peers = peers
        self._deadline = -math.inf
        self._settled = asyncio.Event()
        self._stops = False

    # -- asking ----------------------------------------------------------------

    async def drain(self, seconds: float) -> Reading:
        """Prepares, or joins what is under way, and waits until nothing is in flight.

        Args:
            seconds: The most to wait. Requests run on after that, too.

        Returns:
            What it had come to. ``serving`` if it was taken back meanwhile.
        """
        loop = asyncio.get_running_loop()
        self._deadline = max(self._deadline, loop.time() + seconds)
        if self._peers is None:
            self.prepare()
        elif not self._gate.closed:
            self._peers.want(prepare=True)
        settled = self._settled
        idle = loop.create_task(self._all_idle())
        over = loop.create_task(settled.wait())
        try:
            await asyncio.wait(
                {idle, over},
                timeout=seconds if seconds < threading.TIMEOUT_MAX else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            idle.cancel()
            over.cancel()
        reading = self.reading()
        if settled.is_set() and not self._stops:
            # It may be prepared anew by now, for others.
            return structs.replace(reading, phase=SERVING)
        return reading

    async def _all_idle(self) -> None:
        if self._peers is not None and not self._stops:
            await self._peers.idle.wait()  # this one's word is among theirs
        await self.own_idle()

    async def take_back(self) -> bool:
        """Lets requests in again, if no stop has begun; who waits is told.

        Returns:
            Whether the server serves.
        """
        if not self.under_way:
            return not self._gate.closed
        if self._peers is None:
            self.withdraw()
        else:
            self._peers.want(prepare=False)
            await self._settled.wait()
        return not self._stops

    # -- this server's own part ------------------------------------------------

    def prepare(self) -> None:
        """Lets nobody in from now on. Doing it twice is harmless."""
        if self._gate.closed:
            return
        self._gate.close()
        self._watch()
        self.under_way = True
        self._changed()
        logger.info(
            "[shutdown] drain prepared: not ready, nobody is let in; %d requests in "
            "flight",
            self._gate.tally.requests,
        )

    def withdraw(self) -> None:
        """Takes that back, where no stop has begun."""
        if not self.under_way:
            return
        self.under_way = False
        self._unwatch()
        self._gate.open()
        self._deadline = -math.inf
        self._settled.set()
        self._settled = asyncio.Event()
        self._changed()
        logger.info("[shutdown] drain taken back: the server serves again")

    async def own_idle(self) -> None:
        """Returns when nothing is in flight here."""
        await self._gate.tally.idle()

    def hear(self, message: Mapping[str, Any]) -> None:
        """What the launcher of several servers has passed on."""
        if self._peers is not None:
            self._peers.hear(message, self)

    # -- what a stop does to it ------------------------------------------------

    def overtake(self) -> None:
        """A stop begins, from any thread: nothing can be taken back from here on."""
        self._stops = True
        self.under_way = False
        self._gate.close()

    def settle(self) -> None:
        """Nothing is in flight any more, however it ended: nobody waits on."""
        self._settled.set()

    # -- looking ---------------------------------------------------------------

    def reading(self) -> Reading:
        """How it stands now."""
        tally, stop = self._gate.tally, self._stop()
        if stop is not None:
            return of_stop(stop, tally)
        if self._stops:  # the order is about to be entered
            return Reading(str(Phase.ANNOUNCE), tally.requests, math.inf)
        if not self.under_way:
            return Reading(SERVING, tally.requests)
        left = self._deadline - asyncio.get_running_loop().time()
        others = self._peers.busy if self._peers is not None else 0
        return Reading(PREPARE, tally.requests, max(0.0, left), others)
