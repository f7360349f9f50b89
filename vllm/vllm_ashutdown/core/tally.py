"""What is still in flight, with an event for the moment when nothing is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Tally:
    """Counts what a drain waits for. Belongs to one event loop.

    Three things keep an engine busy, and looking at one alone ends a drain too
    early: requests in the engine's own map, requests that are still on their
    way into it (their prompt is being tokenized, say), and HTTP exchanges
    whose next engine request is yet to come (a response that calls a tool
    between two generations) or whose last byte is yet to go.

    Attributes:
        changed: Called whenever something has left, where somebody wants to know.
    """

    def __init__(self) -> None:
        self._busy = 0
        self._maps: list[WatchedMap] = []
        self._waiters: set[asyncio.Future[None]] = set()
        self.changed: Callable[[], None] | None = None

    @property
    def in_flight(self) -> int:
        """How many are in flight, by all counts together."""
        return self._busy + sum(len(watched) for watched in self._maps)

    @property
    def requests(self) -> int:
        """How many requests that are, to show: 0 only if nothing is in flight.

        An HTTP exchange and its entry in the engine's map are one request.
        """
        return max(self._busy, sum(len(watched) for watched in self._maps))

    @property
    def gone(self) -> int:
        """How many entries have left the maps since they are watched."""
        return sum(watched.gone for watched in self._maps)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Counts one more for as long as the block runs."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._settle()

    def hold(self, task: asyncio.Future[Any]) -> None:
        """Counts one more until ``task`` is over."""
        self._busy += 1
        task.add_done_callback(self._let_go)

    def _let_go(self, _: asyncio.Future[Any]) -> None:
        self._busy -= 1
        self._settle()

    def watch(self, entries: Mapping[Any, Any]) -> WatchedMap:
        """A dict with the same entries that this tally counts from now on."""
        watched = WatchedMap(entries, self._settle)
        self._maps.append(watched)
        return watched

    def unwatch(self, watched: WatchedMap) -> dict[Any, Any]:
        """A plain dict with what is in ``watched``, which counts no more."""
        self._maps.remove(watched)
        self._settle()
        return dict(watched)

    async def idle(self) -> None:
        """Returns when nothing is in flight; at once if nothing is now."""
        # Again after each wake: something may have begun before our turn came.
        while self.in_flight:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    def _settle(self) -> None:
        if self.changed is not None:
            self.changed()
        if self._waiters and not self.in_flight:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)


class WatchedMap(dict[Any, Any]):
    """A dict that tells when entries leave, and counts them.

    It takes the place of a plain dict for the length of a stop, so serving
    pays nothing for it. ``setdefault``, ``update`` and item assignment are not
    watched: only what leaves matters.
    """

    def __init__(self, entries: Mapping[Any, Any], left: Callable[[], None]) -> None:
        super().__init__(entries)
        self.gone = 0
        self._left = left

    def _removed(self, count: int) -> None:
        if count:
            self.gone += count
            self._left()

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        self._removed(1)

    def pop(self, *args: Any) -> Any:
        before = len(self)
        value = super().pop(*args)
        self._removed(before - len(self))
        return value

    def popitem(self) -> tuple[Any, Any]:
        item = super().popitem()
        self._removed(1)
        return item

    def clear(self) -> None:
        before = len(self)
        super().clear()
        self._removed(before)
