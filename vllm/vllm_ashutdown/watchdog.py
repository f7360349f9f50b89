"""What ends a server whose stop does not end: armed with the budget, never disarmed.

The order bounds each of its waits. This is for what it cannot bound: an event loop that
is held by native code, a step that never returns. It has two stages. A thread writes
down what every thread is at, kills what the server owns, releases what can be released
from outside, and leaves with a code of its own. Where even that thread gets no turn,
since someone holds the interpreter's lock, C code that needs none writes the same down
and leaves; the children then go by their lifelines.

Before that there is a signal, and the loop that is to answer it may itself be held. A
thread hears of it in the same instant, and gives the loop the time that the whole stop
would have.

Only for a process that is a server and nothing more. In a program that uses vLLM as a
library each step is bounded, and what hangs there is the program's to end.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
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
from .tree.child import SIGNALS
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
                _bite_without_lock(left + LOCKED_SECONDS)
            if not moved.wait(None if endless else left):
                _bite(
                    f"the stop ({self._stop.trigger}) did not end in its time",
                    self._processes(),
                )


class SignalWatch:
    """Hears of each signal as it comes, and bites if the event loop never does.

    Python tells a loop of signals by a byte in a socket, which is written at once and
    whatever the main thread is at. This one is put before the loop's, and passes on
    what it reads.
    """

    def __init__(self, seconds: float, processes: Callable[[], Sequence[Any]]) -> None:
        """Nothing is heard yet.

        Args:
            seconds: The most that a stop may take, from the signal on.
            processes: What this process has begun, of ``multiprocessing``.
        """
        self._seconds = seconds
        self._processes = processes
        self._begun = threading.Event()
        self._answered = threading.Event()
        self._loops = -1

    def begin(self) -> None:
        """Begins to listen, in a process that is a server and nothing more.

        On the main thread, once the loop has its handlers.
        """
        if not leaves_fast():
            return
        ear, mouth = socket.socketpair()
        mouth.setblocking(False)
        listening = threading.Thread(
            target=self._listen, args=(ear,), name="vllm-ashutdown-signals", daemon=True
        )
        try:
            listening.start()
        except RuntimeError as error:  # no more threads are to be had
            logger.warning("[shutdown] nobody watches the signals: %s", error)
            return
        self._loops = signal.set_wakeup_fd(mouth.detach(), warn_on_full_buffer=False)
        self._begun.set()

    def answered(self) -> None:
        """Notes that the loop has heard of a signal; from here on the stop counts."""
        self._answered.set()

    def _listen(self, ear: socket.socket) -> None:
        self._begun.wait()
        limit = self._seconds + MARGIN_SECONDS
        while True:
            try:
                numbers = ear.recv(64)
            except TimeoutError:
                if not self._answered.is_set():
                    _bite("the event loop has not answered a signal", self._processes())
                ear.settimeout(None)
                continue
            if self._loops != -1:
                self._pass_on(numbers)
            asked = any(number in SIGNALS for number in numbers)
            if asked and ear.gettimeout() is None and limit <= threading.TIMEOUT_MAX:
                ear.settimeout(limit)

    def _pass_on(self, numbers: bytes) -> None:
        try:
            os.write(self._loops, numbers)
        except BlockingIOError:  # it is full: the loop has a reason to look
            logger.debug("[shutdown] the loop has not read its signals")


def _bite_without_lock(seconds: float) -> None:
    """Ends this process after ``seconds``, by a clock that needs no interpreter.

    A process has one: each call takes the place of the last.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or 2)


def _bite(what: str, processes: Sequence[Any]) -> None:
    """Ends this process and all that it has begun."""
    telling = threading.Thread(target=_tell, args=(what,), daemon=True)
    telling.start()
    # A log that nobody reads any more must hold up nothing.
    telling.join(TELL_SECONDS)
    try:
        strike(processes)
        alive_after(processes, REAP_SECONDS)
        ledger.remove_all()
        release_for(processes)
        claims.withdraw()
    finally:
        os._exit(ExitCode.WATCHDOG)


def _tell(what: str) -> None:
    logger.critical(
        "[shutdown] %s. What each thread is at follows; then its processes are killed, "
        "and this one leaves with code %d. This is a fault of vLLM, of vllm-ashutdown "
        "or of a plugin: please report it with these lines.",
        what,
        ExitCode.WATCHDOG,
    )
    faulthandler.dump_traceback(sys.__stderr__ or 2)
