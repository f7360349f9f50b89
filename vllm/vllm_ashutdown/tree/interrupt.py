"""Has the main thread run its handler of a signal, even where it just begins to wait.

The kernel delivers a signal at once, but Python runs the handler between two bytecodes.
A thread that has looked for one, and then begins to wait for a lock or a socket, waits
on through what comes in between. Another thread is likely to hit that moment: the lock
of the interpreter is let go there, which is what the other one has waited for.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time

AGAIN_SECONDS = 0.02
"""After which a handler that has not run is taken for slept through; then doubled."""

SLOWEST_SECONDS = 1.0
"""Up to here: the main thread may be in a call that takes its time."""


class Interrupt:
    """One interruption at a time, sent from any other thread."""

    def __init__(self) -> None:
        self._due: list[int] = []
        self._wake: int | None = None

    def prepare(self) -> None:
        """Sets what wakes the main thread, which has to call this."""
        if self._wake is None:
            self._wake = next(filter(_is_free, _reserved()), None)
        if self._wake is not None:
            signal.signal(self._wake, _nothing)

    def send(self, number: int) -> None:
        """Has the handler of signal ``number`` run. Does not wait for it."""
        self._due.append(number)
        _send(number)
        _thread.start_new_thread(self._insist, ())

    def take(self) -> int | None:
        """By the handler: for which signal it was sent, if it was and is not taken."""
        try:
            return self._due.pop()
        except IndexError:
            return None

    def _insist(self) -> None:
        # By another signal, whose own handler does nothing: a number that is sent
        # twice would be two signals to whoever counts them.
        pause = AGAIN_SECONDS
        while True:
            time.sleep(pause)
            if not self._due or self._wake is None:
                return
            _send(self._wake)
            pause = min(2 * pause, SLOWEST_SECONDS)


def _send(number: int) -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, number)


def _reserved() -> range:
    """Signals that mean nothing to the kernel, most of all to nobody else either."""
    return range(signal.SIGRTMIN + 7, signal.SIGRTMAX)


def _is_free(number: int) -> bool:
    return signal.getsignal(number) in (signal.SIG_DFL, _nothing)


def _nothing(number: int, frame: object) -> None:
    """Python runs the handlers of all signals that are pending, this one among them."""
