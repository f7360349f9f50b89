"""What ends a server whose stop does not end: armed with the budget, never disarmed.

The order bounds each of its waits. This is for what it cannot bound: an event loop that
is held by native code, a step that never returns. It has two stages. A thread writes
down what every thread is at, kills what the server owns, releases what can be released
from outside, and leaves with a code of its own. Where even that thread gets no turn,
since someone holds the interpreter's lock, C code that needs none writes the same down
and leaves; the children then go by their lifelines.

Only for a process that is a server and nothing more. In a program that uses vLLM as a
library each step is bounded, and what hangs there is the program's to end.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from .core.claims import claims
from .core.files import ledger
from .core.stop import Stop
from .exit_code import ExitCode
from .process_exit import leaves_fast
from .tree.belongings import release_for
from .tree.ending import REAP_SECONDS, alive_after, strike

logger = logging.getLogger("vllm.ashutdown")

MARGIN_SECONDS = 0.5
"""Behind the deadline of the budget: the order's own last step ends there."""

TELL_SECONDS = 1.0
"""For the lines about it to be written."""

LOCKED_SECONDS = 4.0
"""Behind that, until it counts as lost that the thread gets its turn."""


class Watchdog:
    """Of one stop of this process's server."""

    def __init__(self, stop: Stop, processes: Callable[[], Sequence[Any]]) -> None:
        """Nothing is armed yet.

        Args:
            stop: Its budget is the one that counts, also when it is raised.
            processes: What this process has begun, of ``multiprocessing``.
        """
        self._stop = stop
        self._processes = processes

    def arm(self) -> None:
        """Begins to watch, in a process that is a server and nothing more."""
        if not leaves_fast():
            return
        try:
            threading.Thread(
                target=self._watch, name="vllm-ashutdown-watchdog", daemon=True
            ).start()
        except RuntimeError as error:  # no more threads are to be had
            logger.warning("[shutdown] there is no watchdog: %s", error)

    def _watch(self) -> None:
        moved = self._stop.budget_moved
        while True:
            moved.clear()
            left = self._stop.budget.remaining() + MARGIN_SECONDS
            endless = left > threading.TIMEOUT_MAX
            if not endless:
                # One timer a process has; each call takes the place of the last.
                faulthandler.dump_traceback_later(
                    left + LOCKED_SECONDS, exit=True, file=sys.__stderr__ or 2
                )
            if not moved.wait(None if endless else left):
                self._bite()

    def _bite(self) -> None:
        telling = threading.Thread(target=self._tell, daemon=True)
        telling.start()
        # A log that nobody reads any more must hold up nothing.
        telling.join(TELL_SECONDS)
        try:
            processes = self._processes()
            strike(processes)
            alive_after(processes, REAP_SECONDS)
            ledger.remove_all()
            release_for(processes)
            claims.withdraw()
        finally:
            os._exit(ExitCode.WATCHDOG)

    def _tell(self) -> None:
        logger.critical(
            "[shutdown] the stop (%s) did not end in its time. What each thread is at "
            "follows; then its processes are killed, and this one leaves with code %d. "
            "This is a fault of vLLM, of vllm-ashutdown or of a plugin: please report "
            "it with these lines.",
            self._stop.trigger,
            ExitCode.WATCHDOG,
        )
        faulthandler.dump_traceback(sys.__stderr__ or 2)
