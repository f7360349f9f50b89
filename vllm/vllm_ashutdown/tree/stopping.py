"""The stop of a whole tree, by the process on top of it.

With several API servers the requests end in them, and the cores belong to the
launcher. It has no event loop and no request: it tells the servers, each of which
keeps the order of its own, and stops the cores when the last of them needs none any
more. HTTP closes while the cores stop, and the kernel takes back the memory of all of
them at the same time.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct

from ..core.budget import Budget
from ..core.merge import merged_phases, merged_requests
from ..core.mode import Mode
from ..core.order import core_seconds
from ..core.phase import Phase
from ..core.report import ShutdownReport
from ..core.stop import Detail, Stop
from ..core.trigger import Trigger
from ..inventory import Look, Owned, compare, leftovers, look
from .belongings import ROWS, made_by, owned_by, release_for
from .ending import alive_after, end, ends_of, kill, leaving, reap, strike
from .handle import handles, ready
from .place import home

logger = logging.getLogger("vllm.ashutdown")

SERVERS_SHARE = 0.35
"""Of the teardown reserve: for the servers, once nothing drains any more."""

_IN_SERVERS = (Phase.ANNOUNCE, Phase.ADMISSION, Phase.DRAIN, Phase.END, Phase.HANDLER)


class Tree(Struct, frozen=True):
    """What the launcher began, by what it is.

    Attributes:
        servers: API servers.
        cores: Engine cores.
        others: What they need until their last word, such as the coordinator.
        release: Gives back what the launcher itself holds.
        made: Path and kind of that.
    """

    servers: Sequence[Any]
    cores: Sequence[Any]
    others: Sequence[Any]
    release: Callable[[], None]
    made: Callable[[], dict[str, str]]

    @property
    def processes(self) -> list[Any]:
        """All of them."""
        return [*self.servers, *self.cores, *self.others]


class TreeStop:
    """One stop of a tree. :meth:`run` blocks; :meth:`raise_to` may interrupt it."""

    def __init__(
        self, tree: Tree, mode: Mode, drain: float, teardown: float, trigger: Trigger
    ) -> None:
        self._tree = tree
        self._reports: list[ShutdownReport] = []
        self._killed: set[int] = set()
        self._past_the_core: list[Any] = []
        self._before: Look | None = None
        self._made: dict[str, str] = {}
        self._wake, self._waker = os.pipe()
        self.stop = Stop(
            mode, Budget.arm(drain, teardown), trigger, raised=self._raised
        )

    def raise_to(self, mode: Mode, trigger: Trigger) -> None:
        """Makes the stop harder, from a signal handler too."""
        self.stop.raise_to(mode, trigger)

    def _raised(self, mode: Mode) -> None:
        if mode is Mode.KILL:
            strike(self._tree.processes, self._killed)
        else:
            self._tell()
        os.write(self._waker, b"!")  # the deadline has moved

    def run(self) -> ShutdownReport:
        """The whole stop, in order."""
        stop = self.stop
        try:
            self._tell()
            stop.enter(Phase.DRAIN if stop.mode is Mode.DRAIN else Phase.END)
            self._until_servers_need_no_core()
            stop.drained()
            stop.do(Phase.CORE, self._stop_cores)
            self._until_servers_are_gone()
            stop.requests = merged_requests(self._reports)
            stop.records[:0] = merged_phases(self._reports, _IN_SERVERS)
            stop.do(Phase.RELEASE, self._release)
            stop.records += merged_phases(self._reports, [Phase.HTTP])
            stop.do(Phase.AUDIT, self._audit)
        finally:
            stop.finish()
            for descriptor in (self._wake, self._waker):
                os.close(descriptor)
        return stop.outcome.result()

    # -- the servers -----------------------------------------------------------

    def _servers_seconds(self) -> float:
        budget = self.stop.budget
        behind = (1 - SERVERS_SHARE) * budget.teardown
        return max(0.0, budget.remaining() - behind)

    def _tell(self) -> None:
        here = home()
        stop, seconds = self.stop, self._servers_seconds()
        drain = min(stop.budget.allot(Phase.DRAIN), seconds)
        for process in self._tree.servers:
            if here is not None and process.exitcode is None:
                here.allow(
                    process.pid,
                    mode=str(stop.mode),
                    drain=drain if stop.mode is Mode.DRAIN else 0.0,
                    seconds=seconds,
                    trigger=stop.trigger.plain(),
                )
                process.terminate()

    def _until_servers_need_no_core(self) -> None:
        """Waits until each of them is over, or says so; kills who does neither."""
        with contextlib.ExitStack() as opened:
            running = opened.enter_context(handles(self._tree.servers))
            bell = self._bell(opened)
            while running:
                for handle, process in list(running.items()):
                    if _is_past_the_core(process):
                        self._past_the_core.append(running.pop(handle))
                if not running:
                    break
                woken = ready([*running, self._wake, *bell], self._servers_seconds())
                for one in woken:
                    if one == self._wake:
                        os.read(self._wake, 64)
                    elif one in bell:
                        os.eventfd_read(one)
                    else:
                        reap(running.pop(one))
                if not woken and self._servers_seconds() <= 0:
                    break
            late = list(running.values())
        self._killed |= kill(late)

    def _bell(self, opened: contextlib.ExitStack) -> list[int]:
        here = home()
        try:
            return [] if here is None else [opened.enter_context(here.bell())]
        except OSError:  # no descriptors left: they are seen when they are gone
            return []

    def _until_servers_are_gone(self) -> None:
        """Waits for those that have closed HTTP meanwhile; the kernel is at them."""
        late = alive_after(self._past_the_core, core_seconds(self.stop))
        self._killed |= kill(late)
        ends = [ends_of(process, self._killed) for process in self._tree.servers]
        self.stop.processes[:0] = chain.from_iterable(ends)
        for process in self._tree.servers:
            self._reports += _reports_of(process)

    # -- what is behind them ---------------------------------------------------

    def _owned(self) -> Owned:
        self._made |= made_by(self._tree.processes) | self._tree.made()
        return owned_by(self._tree.processes, self._made)

    def _stop_cores(self) -> Detail:
        try:
            self._before = look(self._owned(), probes=ROWS)
        except Exception as error:  # it is for the report alone
            logger.debug("[shutdown] nothing is known from before: %r", error)
        grace = 0.0 if self.stop.mode is Mode.KILL else core_seconds(self.stop)
        cores, others = self._tree.cores, self._tree.others
        ends = end(cores, grace, struck=self._killed, behind=others)
        self.stop.processes += ends
        return ", ".join(map(str, ends)) or None

    def _release(self) -> Detail:
        self._tree.release()
        release_for(self._tree.processes)
        return None

    def _audit(self) -> Detail:
        found = [
            f"process {process.name} (pid {process.pid}) is alive"
            for process in self._tree.processes
            if process.exitcode is None
        ]
        if self._before is not None:
            rows = compare(self._before, look(self._owned(), self._before, ROWS), ROWS)
            self.stop.inventory.extend(rows)
            found += [line for line in leftovers(rows) if line not in found]
        for report in self._reports:
            found += report.leftovers
        self.stop.leftovers.extend(found)
        return "; ".join(found) or "nothing left"


def _is_past_the_core(process: Any) -> bool:
    here = home()
    return here is not None and (
        here.record(process.pid).past_the_core or leaving(process) is not None
    )


def _reports_of(process: Any) -> list[ShutdownReport]:
    here = home()
    said = [] if here is None else here.record(process.pid).said
    return [
        ShutdownReport.from_json(words["report"])
        for words in said
        if words.get("is") == "report"
    ]
