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
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from importlib import import_module

import anyio

from .budget import Budget
from .mode import Mode
from .phase import Outcome, Phase, PhaseRecord
from .report import ProcessEnd, RequestCounts, ShutdownReport
from .trigger import Trigger

# AnyIO loads its asyncio half at the first use, which would be in the middle of a
# stop, on the loop, for longer than a step may hold it.
import_module("anyio._backends._asyncio")

logger = logging.getLogger("vllm.ashutdown")

Detail = str | None
"""What a step returns: something to say about it, or nothing."""


class Stop:
    """The state of a stop that is under way.

    Attributes:
        trigger: What asked for it first.
        mode: How hard it is by now.
        budget: Its one deadline.
        requests: Counted by the steps.
        processes: Filled by the steps.
        leftovers: Filled by the audit.
        records: One a phase that is over.
        outcome: The report, once there is one. It cannot be cancelled.
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
        self.budget = budget
        self.requests = RequestCounts()
        self.processes: list[ProcessEnd] = []
        self.leftovers: list[str] = []
        self.outcome: Future[ShutdownReport] = Future()
        # A running future refuses to be cancelled, so no joiner can.
        self.outcome.set_running_or_notify_cancel()
        self.records: list[PhaseRecord] = []
        self._raised = raised
        self._loop: asyncio.AbstractEventLoop | None = None
        self._interrupt: Callable[[], None] | None = None
        self._is_quiet = False
        self._quiet_waiters: list[asyncio.Future[None]] = []

    # -- asking, joining ------------------------------------------------------

    def raise_to(self, mode: Mode, trigger: Trigger) -> bool:
        """Makes the stop harder; does nothing if it is that hard already.

        Callable from any thread.

        Returns:
            Whether it went up.
        """
        if mode <= self.mode or self.outcome.done():
            return False
        logger.warning(
            "[shutdown] raised from %s to %s by %s", self.mode, mode, trigger
        )
        self.mode = mode
        self.budget = self.budget.raised_to(mode)
        if self._raised is not None:
            self._raised(mode)
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._interrupted)
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
        if self._skipped(phase):
            return
        began, allotted = self.budget.clock(), self.budget.allot(phase)
        outcome, detail = Outcome.DONE, None
        self._loop = asyncio.get_running_loop()
        with anyio.move_on_after(allotted, shield=True) as scope:
            self._interrupt = lambda: self._move_deadline(phase, scope)
            while True:
                try:
                    detail = await work()
                except asyncio.CancelledError:
                    if scope.cancel_called:
                        raise
                    # Not ours: the loop is being torn down around us.
                    task = asyncio.current_task()
                    if task is not None:
                        task.uncancel()
                    self.raise_to(Mode.ABORT, Trigger.call("a cancelled event loop"))
                    if phase is Phase.DRAIN:
                        outcome = Outcome.RAISED
                        break
                    continue
                except Exception as error:
                    outcome, detail = Outcome.FAILED, self._failed(phase, error)
                break
        self._interrupt = None
        if scope.cancelled_caught:
            cut = phase is Phase.DRAIN and self.mode is not Mode.DRAIN
            outcome = Outcome.RAISED if cut else Outcome.EXPIRED
        if phase is Phase.DRAIN:
            self.budget = self.budget.without_drain()
            if outcome is Outcome.EXPIRED:
                # What could not finish is ended now, not waited for again.
                self.mode = max(self.mode, Mode.ABORT)
        if phase is Phase.HANDLER:
            self._quiet()
        self._record(phase, allotted, began, outcome, detail)

    def do(self, phase: Phase, work: Callable[[], Detail]) -> None:
        """Runs one step that does not wait, or blocks by right."""
        if self._skipped(phase):
            return
        began, allotted = self.budget.clock(), self.budget.allot(phase)
        outcome, detail = Outcome.DONE, None
        try:
            detail = work()
        except Exception as error:
            outcome, detail = Outcome.FAILED, self._failed(phase, error)
        self._record(phase, allotted, began, outcome, detail)

    def finish(self) -> None:
        """Makes the report and wakes every joiner. Doing it twice is harmless."""
        if self.outcome.done():
            return
        self._quiet()
        report = ShutdownReport(
            trigger=self.trigger,
            mode=self.first_mode,
            final_mode=self.mode,
            seconds=self.budget.elapsed(),
            phases=tuple(self.records),
            requests=self.requests,
            processes=tuple(self.processes),
            leftovers=tuple(self.leftovers),
        )
        self.outcome.set_result(report)

    def cannot_drain(self) -> None:
        """Notes that no loop turns, so that requests cannot run on."""
        if self.mode is Mode.DRAIN:
            self.mode = Mode.ABORT
            self.budget = self.budget.raised_to(self.mode)

    async def quiet(self) -> None:
        """Returns once the output handler is over and every request has ended.

        From then on nothing needs the engine, and what stands around it (an
        HTTP server) can close while the core is still at it.
        """
        if not self._is_quiet:
            waiter = asyncio.get_running_loop().create_future()
            self._quiet_waiters.append(waiter)
            await waiter

    def _quiet(self) -> None:
        self._is_quiet = True
        for waiter in self._quiet_waiters:
            if not waiter.done():
                waiter.get_loop().call_soon_threadsafe(_wake, waiter)
        self._quiet_waiters.clear()

    def forget(self) -> None:
        """Drops what it holds of the engine once it is over; the report stays."""
        self._raised = self._interrupt = self._loop = None

    def _skipped(self, phase: Phase) -> bool:
        if phase is not Phase.DRAIN or self.mode is Mode.DRAIN:
            return False
        self.records.append(
            PhaseRecord(phase, 0.0, 0.0, Outcome.SKIPPED, "", self.budget.elapsed())
        )
        return True

    def _move_deadline(self, phase: Phase, scope: anyio.CancelScope) -> None:
        if phase is Phase.DRAIN:
            scope.cancel()
        else:
            # anyio.current_time() is for tasks, and this runs in a callback; on
            # asyncio it is the loop's own clock.
            now = asyncio.get_running_loop().time()
            scope.deadline = now + self.budget.allot(phase)

    def _failed(self, phase: Phase, error: Exception) -> str:
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
        spent = self.budget.clock() - began
        self.records.append(
            PhaseRecord(
                phase,
                allotted,
                spent,
                outcome,
                detail or "",
                began - self.budget.armed_at,
            )
        )
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


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
