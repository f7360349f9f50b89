"""All kinds of resources that a stop must give back, and what became of each."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct, structs

from .device import DEVICE_MEMORY
from .files import IPC_FILES, TEMPORARY_FILES
from .interpreter import DESCRIPTORS, GROUPS, REFERENCES, TASKS, THREADS
from .memory import MEMORY, SEMAPHORES
from .owned import Owned
from .probe import Probe
from .processes import PROCESSES
from .sockets import LISTENING
from .view import View

logger = logging.getLogger("vllm.ashutdown")

PROBES: tuple[Probe, ...] = (
    PROCESSES,
    MEMORY,
    SEMAPHORES,
    IPC_FILES,
    TEMPORARY_FILES,
    LISTENING,
    GROUPS,
    DEVICE_MEMORY,
    THREADS,
    TASKS,
    REFERENCES,
    DESCRIPTORS,
)
"""One for each kind, in the order in which a report shows them."""


class Look(Struct, frozen=True):
    """What was there at one moment.

    Attributes:
        items: For each row what its probe saw, sorted.
        errors: For each row that could not be looked at, why.
        seconds: How long the whole look took.
    """

    items: Mapping[str, tuple[str, ...]]
    errors: Mapping[str, str] = MappingProxyType({})
    seconds: float = 0.0


class Row(Struct, frozen=True):
    """One kind of resource before and after a stop.

    Attributes:
        name: The kind, as :attr:`Probe.row` has it.
        before: What was there when the stop began.
        after: What was there when it was over.
        leftovers: What of it must not be there, one line each; empty is clean.
    """

    name: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()

    def __str__(self) -> str:
        left = "; ".join(self.leftovers)
        counts = f"{self.name}: {len(self.before)} before, {len(self.after)} after"
        return f"{counts}; {left}" if left else counts

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Row:
        """The row that was made plain, back out of JSON.

        Raises:
            ValueError: ``data`` is no such row.
        """
        try:
            return cls(
                _text(data["name"]),
                *(
                    tuple(map(_text, _list(data[part])))
                    for part in ("before", "after", "leftovers")
                ),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a row of an inventory: {error}") from error


def look(
    owned: Owned, before: Look | None = None, probes: tuple[Probe, ...] = PROBES
) -> Look:
    """Looks for everything that belongs to ``owned``, once, and changes nothing.

    For one server that is gone it takes a few milliseconds. What costs is
    /proc/PID/maps, of each living process and of this one: 2 to 5 ms for each
    thousand lines. Where many large workers live, look on another thread than the
    loop's; the kernel does the work, and nothing here belongs to a thread.

    Args:
        owned: What belongs to the instance.
        before: An earlier look. What it found by way of a process has a name that
            outlives the process, and is looked for under that name.
        probes: The rows.
    """
    began = time.perf_counter()
    view = View(owned if before is None else _with_names(owned, before))
    items: dict[str, tuple[str, ...]] = {}
    errors: dict[str, str] = {}
    for probe in probes:
        try:
            items[probe.row] = tuple(sorted(probe.look(view)))
        except Exception as error:
            # The other rows count more than this one's mishap; it is told as what
            # it is, and compare() does not take it for a clean row.
            logger.warning("[shutdown] cannot look at %s", probe.row, exc_info=True)
            items[probe.row] = ()
            errors[probe.row] = f"{type(error).__name__}: {error}"
    return Look(items, errors, time.perf_counter() - began)


def compare(
    before: Look, after: Look, probes: tuple[Probe, ...] = PROBES
) -> tuple[Row, ...]:
    """What became of each kind between two looks, one row for each of ``probes``."""
    return tuple(
        Row(
            name=probe.row,
            before=tuple(before.items.get(probe.row, ())),
            after=tuple(after.items.get(probe.row, ())),
            leftovers=_leftovers(probe, after),
        )
        for probe in probes
    )


def leftovers(rows: Iterable[Row]) -> tuple[str, ...]:
    """The lines of all ``rows``: what a report has as its leftovers."""
    return tuple(line for row in rows for line in row.leftovers)


def _leftovers(probe: Probe, after: Look) -> tuple[str, ...]:
    if not probe.must_go:
        return ()
    lines = [probe.line(item) for item in after.items.get(probe.row, ())]
    if probe.row in after.errors:
        lines.append(f"{probe.row} could not be seen: {after.errors[probe.row]}")
    return tuple(lines)


def _with_names(owned: Owned, before: Look) -> Owned:
    def names(probe: Probe) -> frozenset[str]:
        # What had lost its name by then is told of with more than a name, and so
        # leads to nothing: it went with its holder.
        return frozenset(before.items.get(probe.row, ()))

    return structs.replace(
        owned,
        memory=owned.memory | names(MEMORY),
        semaphores=owned.semaphores | names(SEMAPHORES),
        files=owned.files | names(TEMPORARY_FILES),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _list(value: Any) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is no list")
    return value
