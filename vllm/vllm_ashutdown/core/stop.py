"""One stop of one engine: joinable from anywhere, and only ever raised.

The property wanted: whoever asks, however often, from whatever thread or loop,
and whether or not it is cancelled meanwhile, there is one run, it ends, and
each caller gets its one report.

Why that is hard in asyncio, and what is done about it:

* A caller that is cancelled must not take the teardown with it. So the run is
  a task of its own and callers only wait for its outcome.
* A bare ``asyncio.shield`` would orphan it on cancellation: the caller would
  be gone while processes are half stopped. So a cancelled caller raises the
  run to abort, waits for it to end, and then lets the cancellation go on.
* ``asyncio.run`` cancels every task when its main coroutine is over, the run
  too, at any await. So each step can be started again: a step that is
  cancelled from outside is entered anew, in abort mode, and finds what the
  first entry has done.
* A task that is cancelled before its first step never runs at all, not even
  its ``finally``. So whoever makes the task must look at how it ended;
  :meth:`Stop.finish` is what they call.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from importlib import import_module
from typing import TYPE_CHECKING

import anyio

from .budget import Budget
from .mode import Mode
from .observer import Observer
from .phase import Outcome, Phase, PhaseRecord
from .report import ProcessEnd, RequestCounts, ShutdownReport
from .trigger import Trigger

if TYPE_CHECKING:
    from ..inventory import Row

logger = logging.getLogger("vllm.ashutdown")


def get_ready() -> None:
    """Loads what a stop would load in its midst, for longer than it may hold the loop.

    AnyIO loads its asyncio half at the first use. A server of vLLM's has done so by
    then; a program need not.
    """
    import_module("anyio._backends._asyncio")


Detail = str | None
"""What a step returns: something to say about it, or nothing."""


class Stop:
    """The state of a stop that is under way.

    Attributes:
        trigger: What asked for it first.
        mode: How hard it is by now.
        phase: The one that was entered last.
        budget: Its one deadline.
        requests: Counted by the steps.
        processes: Filled by the steps.
        leftovers: Filled by the audit.
        inventory: Filled by the audit.
        records: One a phase that is over.
        outcome: The report, once there is one. It cannot be cancelled.
        budget_moved: Set whenever the deadline has come nearer.
        observers: Are told of it as it goes on.
    """

    def __init__(
        self,
        mode: Mode,
        budget: Budget,
        trigger: Trigger,
        raised: Callable[[Mode], None] | None = None,
    ) -> None:
        """Begins the stop's clock and names; the order does the rest.

        Args:
            mode: The mode to begin with.
            budget: Already armed.
            trigger: What asked.
            raised: Called, on whichever thread raises it, when the mode goes up.
        """
        self.trigger = trigger
        self.first_mode = self.mode = mode
        self.phase = Phase.ANNOUNCE
        self.budget = budget
        self.requests = RequestCounts()
        self.processes: list[ProcessEnd] = []
        self.leftovers: list[str] = []
        self.inventory: list[Row] = []
        self.outcome: Future[ShutdownReport] = Future()
        # A running future refuses to be cancelled, so no joiner can.
        self.outcome.set_running_or_notify_cancel()
        self.records: list[PhaseRecord] = []
        self.budget_moved = threading.Event()
        self.observers: list[Observer] = []
        self._raised = raised
        self._loop: asyncio.AbstractEventLoop | None = None
        self._interrupt: Callable[[], None] | None = None
        self._is_quiet: Future[None] = Future()
        self._is_quiet.set_running_or_notify_cancel()
        # Reentrant: a signal handler may ask on the thread that is asking.
        self._lock = threading.RLock()

    # -- asking, joining ------------------------------------------------------

    def raise_to(self, mode: Mode, trigger: Trigger) -> bool:
        """Makes the stop harder; does nothing if it is that hard already.

        Callable from any thread.

        Returns:
            Whether it went up.
        """
        with self._lock:
            before = self.mode
            if mode <= before or self.outcome.done():
                return False
            self.mode = mode
            self.budget = self.budget.raised_to(mode)
        self.budget_moved.set()
        logger.warning("[shutdown] raised from %s to %s by %s", before, mode, trigger)
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._interrupted)
        if self._raised is not None:
            self._raised(mode)
        self._observed(lambda one: one.moved(self))
        return True

    def _interrupted(self) -> None:
        if self._interrupt is not None:
            self._interrupt()

    async def join(self) -> ShutdownReport:
        """Waits for the end of the stop, on any loop.

        If the caller is cancelled, the stop goes on in abort mode to its end,
        and the cancellation goes on after it.
        """
        try:
            return await asyncio.wrap_future(self.outcome)
        except asyncio.CancelledError:
            self.raise_to(Mode.ABORT, Trigger.call("a caller that was cancelled"))
            await self._settled()
            raise

    async def _settled(self) -> None:
        """Waits for the end whatever comes; the stop's own budget bounds it."""
        with anyio.CancelScope(shield=True):
            while not self.outcome.done():
                try:
                    await asyncio.wrap_future(self.outcome)
                except asyncio.CancelledError:
                    continue

    def wait(self, seconds: float | None = None) -> ShutdownReport | None:
        """Blocks the calling thread until the end, at most ``seconds``.

        Never for the thread whose loop runs the stop: it would wait for itself.

        Returns:
            The report, or ``None`` when the time is out first.
        """
        if seconds is not None and seconds > threading.TIMEOUT_MAX:
            seconds = None  # a drain without limit
        try:
            return self.outcome.result(seconds)
        except FutureTimeoutError:
            return None

    # -- running the steps ----------------------------------------------------

    async def step(self, phase: Phase, work: Callable[[], Awaitable[Detail]]) -> None:
        """Runs one waiting step within its share of the budget.

        The share can shrink while the step waits: a stop that is raised cuts a
        drain short and moves every other deadline. The step's errors are
        logged and recorded, never raised: the steps behind it must run.
        """
        if self._is_over(phase):
            return
        began, allotted = self.budget.clock(), self.budget.allot(phase)
        self._loop = asyncio.get_running_loop()
        self.enter(phase)
        while True:
            outcome, detail = await self._attempt(phase, work)
            # None: it was cancelled from outside, since the loop is being torn
            # down around us. It is entered again, and finds what it has done.
            if outcome is not None:
                break
            self.raise_to(Mode.ABORT, Trigger.call("a cancelled event loop"))
            if phase is Phase.DRAIN:
                outcome = Outcome.RAISED
                break
        self._interrupt = None
        if phase is Phase.DRAIN:
            with self._lock:
                self.budget = self.budget.without_drain()
                if outcome is Outcome.EXPIRED:
                    # What could not finish is ended now, not waited for again.
                    self.mode = max(self.mode, Mode.ABORT)
            self.budget_moved.set()
            self._observed(lambda one: one.moved(self))
        if phase is Phase.HANDLER:
            self._quiet()
        self._record(phase, allotted, began, outcome, detail)

    async def _attempt(
        self, phase: Phase, work: Callable[[], Awaitable[Detail]]
    ) -> tuple[Outcome | None, Detail]:
        """Enters a step once; without an outcome if it was cancelled from outside."""
        task = asyncio.current_task()
        assert task is not None
        cancels = task.cancelling()
        scope = anyio.CancelScope(shield=True)
        scope.deadline = self._deadline(phase)
        detail: Detail = None
        try:
            with scope:
                self._interrupt = lambda: self._move_deadline(phase, scope)
                # Another thread may have raised it just before it could be told.
                if phase is Phase.DRAIN and self.mode is not Mode.DRAIN:
                    scope.cancel()
                detail = await work()
        except asyncio.CancelledError as error:
            asked = task.cancelling() > cancels
            while task.cancelling() > cancels:
                task.uncancel()
            if not scope.cancel_called:
                if asked:
                    return None, None
                return Outcome.FAILED, self._failed(phase, error)
        except Exception as error:
            return Outcome.FAILED, self._failed(phase, error)
        else:
            if not scope.cancelled_caught:
                return Outcome.DONE, detail
        cut = phase is Phase.DRAIN and self.mode is not Mode.DRAIN
        return Outcome.RAISED if cut else Outcome.EXPIRED, None

    def do(self, phase: Phase, work: Callable[[], Detail]) -> None:
        """Runs one step that does not wait, or blocks by right."""
        if self._is_over(phase):
            return
        began, allotted = self.budget.clock(), self.budget.allot(phase)
        self.enter(phase)
        outcome, detail = Outcome.DONE, None
        try:
            detail = work()
        except Exception as error:
            outcome, detail = Outcome.FAILED, self._failed(phase, error)
        self._record(phase, allotted, began, outcome, detail)

    def finish(self) -> None:
        """Makes the report and wakes every joiner. Doing it twice is harmless."""
        self._quiet()
        report = ShutdownReport(
            trigger=self.trigger,
            mode=self.first_mode,
            final_mode=self.mode,
            seconds=self.budget.elapsed(),
            phases=tuple(self.records),
            requests=self.requests,
            processes=tuple(
                process.since(self.budget.armed_at) for process in self.processes
            ),
            leftovers=tuple(self.leftovers),
            inventory=tuple(self.inventory),
        )
        with self._lock:
            if not self.outcome.done():
                self.outcome.set_result(report)

    def drained(self) -> None:
        """Gives up what the drain did not need: it is nobody's."""
        with self._lock:
            self.budget = self.budget.without_drain()
        self.budget_moved.set()
        self._observed(lambda one: one.moved(self))

    def cannot_drain(self) -> None:
        """Notes that no loop turns, so that requests cannot run on."""
        with self._lock:
            if self.mode is Mode.DRAIN:
                self.mode = Mode.ABORT
                self.budget = self.budget.raised_to(self.mode)

    async def quiet(self) -> None:
        """Returns once the output handler is over and every request has ended.

        From then on nothing needs the engine, and what stands around it (an
        HTTP server) can close while the core is still at it.
        """
        await asyncio.wrap_future(self._is_quiet)

    def _quiet(self) -> None:
        with self._lock:
            if not self._is_quiet.done():
                self._is_quiet.set_result(None)

    def forget(self) -> None:
        """Drops what it holds of the engine once it is over; the report stays."""
        self._raised = self._interrupt = self._loop = None

    # -- being observed -------------------------------------------------------

    def observed_by(self, *observers: Observer) -> None:
        """Tells them, too, of all that comes from here on."""
        self.observers = [*self.observers, *observers]

    def conclude(self, report: ShutdownReport) -> None:
        """Tells the observers that all is over, and lets them go.

        Args:
            report: The whole one: that of this stop, or of the server around it.
        """
        self._observed(lambda one: one.finished(self, report))
        self.observers = []

    def enter(self, phase: Phase) -> None:
        """Tells that ``phase`` begins; for one that runs elsewhere, who waits does."""
        self.phase = phase
        self._observed(lambda one: one.entered(self, phase))

    def _observed(self, tell: Callable[[Observer], None]) -> None:
        for observer in self.observers:
            try:
                tell(observer)
            except Exception:  # who looks on must not change what goes on
                logger.warning(
                    "[shutdown] %s failed; the stop goes on without it",
                    type(observer).__name__,
                    exc_info=True,
                )
                self.observers = [one for one in self.observers if one is not observer]

    def _is_over(self, phase: Phase) -> bool:
        """Whether ``phase`` need not be entered: skipped, or done by someone else.

        A synchronous shutdown on the loop's own thread does the steps that the
        run on that loop has not come to.
        """
        if any(record.phase is phase for record in self.records):
            return True
        if phase is not Phase.DRAIN or self.mode is Mode.DRAIN:
            return False
        began = self.budget.elapsed()
        record = PhaseRecord(phase, 0.0, 0.0, Outcome.SKIPPED, began=began)
        self.records.append(record)
        self._observed(lambda one: one.left(self, record))
        return True

    def _deadline(self, phase: Phase) -> float:
        # anyio.current_time() is for tasks, and this runs in callbacks too; on
        # asyncio it is the loop's own clock.
        return asyncio.get_running_loop().time() + self.budget.allot(phase)

    def _move_deadline(self, phase: Phase, scope: anyio.CancelScope) -> None:
        if phase is Phase.DRAIN:
            scope.cancel()
        else:
            scope.deadline = self._deadline(phase)

    def _failed(self, phase: Phase, error: BaseException) -> str:
        logger.error("[shutdown] %s failed; going on", phase, exc_info=error)
        return f"{type(error).__name__}: {error}"

    def _record(
        self,
        phase: Phase,
        allotted: float,
        began: float,
        outcome: Outcome,
        detail: Detail,
    ) -> None:
        if any(record.phase is phase for record in self.records):
            return  # someone else was faster
        spent = self.budget.clock() - began
        record = PhaseRecord(
            phase,
            allotted,
            spent,
            outcome,
            detail or "",
            began - self.budget.armed_at,
        )
        self.records.append(record)
        self._observed(lambda one: one.left(self, record))
        expired = outcome is Outcome.EXPIRED and phase is not Phase.DRAIN
        logger.log(
            logging.WARNING if expired else logging.INFO,
            "[shutdown] %s %s in %.3fs, %.1fs left%s",
            phase,
            outcome,
            spent,
            self.budget.remaining(),
            f": {detail}" if detail else "",
        )
