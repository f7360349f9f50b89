"""The start of a server: from here on a signal ends it, and nothing of it stays.

vLLM has handlers for the time when it serves. Until then a signal is lost in whatever
the main thread is doing, for the half minute in which an engine starts: here it is
noted at once, it leaves whatever runs as an exception, and what was begun by then is
stopped in order. A thread sees to it that this comes to an end, should the exception
be lost on its way through other people's code.

For a process that does nothing but to serve. A program that uses vLLM as a library
keeps its own signals.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from .core.claims import claims
from .core.files import ledger
from .core.mode import Mode
from .core.trigger import Trigger
from .exit_code import ExitCode
from .process_exit import exit_code, fast_exit, will_leave_fast
from .program import is_a_server
from .tree.child import SIGNALS
from .tree.ending import REAP_SECONDS, alive_after, strike
from .tree.interrupt import Interrupt
from .tree.member import Member
from .tree.part import Part
from .tree.place import home
from .tree.record import default_decision
from .tree.signals import Signals

if TYPE_CHECKING:
    from .tree.stopping import Tree, TreeStop

logger = logging.getLogger("vllm.ashutdown")

STOP_SECONDS = 1.0
"""From the signal: for what was begun to leave, and to be killed if it does not."""

CHILDREN_SHARE = 0.6
"""Of that: for them to end what they have begun themselves."""

TELL_SECONDS = 0.2
"""For a line about that to be written, should anyone read the log."""

LAST_SECONDS = 1.3
"""From the signal: when the thread that sees to it does what is left to do."""

PARTS = (Part.SERVER, Part.CORE, Part.COORDINATOR)
"""Of those that a start begins itself."""

LOADING = "vLLM is loaded"
"""The first stage: nothing has been begun."""


class StartInterrupted(SystemExit):
    """Leaves the start, through whatever runs there. No error: it was asked for."""

    def __init__(self) -> None:
        super().__init__(int(ExitCode.STOPPED))


class Start:
    """The start of this process's server, of which there is one.

    Attributes:
        stage: How far it has come, for people.
        trigger: What has interrupted it.
    """

    def __init__(self) -> None:
        self.stage = LOADING
        self.trigger: Trigger | None = None
        self.active = False
        self._at = 0.0
        self._own_signals = 0
        self._interrupt = Interrupt()
        self._whole = 0
        self._due = False
        self._failed = False
        self._before: dict[int, Any] = {}
        self._stop: TreeStop | None = None
        self._said = threading.Lock()
        self._over = threading.Event()

    # -- its life --------------------------------------------------------------

    def watch(self) -> None:
        """Begins to answer for signals, if this process is a server's from the top.

        Doing it twice is harmless.
        """
        if self.active or self._over.is_set() or not is_a_server():
            return
        self.active = True
        will_leave_fast()
        self._interrupt.prepare()
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        atexit.register(self._at_exit)

    def leave(self) -> None:
        """Leaves a start to vLLM's own handlers, as it would be without us."""
        if self.active:
            self.over()
            for number, before in self._before.items():
                signal.signal(number, before)

    def reached(self, stage: str) -> None:
        """Notes how far the start has come."""
        self.stage = stage

    def over(self) -> Trigger | None:
        """Hands the signals over to whoever serves from here on, who has set handlers.

        Returns:
            What has asked for a stop in the last moment, or nothing.
        """
        if not self.active:
            return None
        self.active = False
        self._over.set()
        here = home()
        if here is not None:
            here.by_default = default_decision
        return self.trigger

    @property
    def signals(self) -> int:
        """How many have reached this process itself."""
        return self._own_signals

    @contextlib.contextmanager
    def whole(self) -> Generator[None, None, None]:
        """A block that is not left half way: a process that is begun is also noted."""
        here = home()
        if self.active and here is not None:
            here.by_default = self.decide
        self._whole += 1
        try:
            yield
        finally:
            self._whole -= 1
            if self._due and not self._whole:
                self._due = False
                raise StartInterrupted

    def run(self, main: Callable[[], None]) -> None:
        """Runs ``main``, which starts a server, serves and returns.

        If the start is interrupted, or fails, this process ends here, with nothing
        left of what it had begun.
        """
        self.reached("the configuration is made")
        try:
            main()
        except BaseException as error:
            if self.active:
                self._end(error)
            raise
        if self.active and self.trigger is not None:
            self._end(StartInterrupted())  # lost on its way, and the start gave up

    # -- signals ---------------------------------------------------------------

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Between two bytecodes of the main thread: nothing here may lock or write.
        if self._interrupt.take() is None:  # not our own, on behalf of a child
            self._own_signals += 1
        if self.trigger is None:
            self.trigger = Trigger.signal(number)
        if not self._at and self.stage == LOADING:
            self._leave_at_once()
        if not self._at:
            self._at = time.monotonic()
            _thread.start_new_thread(self._see_to_it, ())
            if self._whole:
                self._due = True
                return
            raise StartInterrupted
        if self._own_signals > 1 and self._stop is not None:
            self._stop.raise_to(Mode.KILL, Trigger.signal(number))
        elif self._own_signals > 1:  # on its way out, vLLM waits for them
            strike(_begun())

    def _leave_at_once(self) -> NoReturn:
        """Where there is nothing to stop, and modules are imported half way.

        Their exit hooks would trip over that.
        """
        os.write(2, f"[shutdown] {self._what}\n".encode())
        os._exit(ExitCode.STOPPED)

    @property
    def _what(self) -> str:
        return f"{self.trigger} while {self.stage}: the start ends here"

    def decide(self, member: Member, number: int) -> bool:
        """On the thread that listens: a child was signalled, and asks what it means."""
        if self.trigger is None:
            self.trigger = Trigger.signal(number, str(member))
            self._interrupt.send(signal.SIGTERM)
        return True

    # -- the end of a start ----------------------------------------------------

    def _say(self) -> None:
        """One line, by whoever comes first."""
        if self._said.acquire(blocking=False):
            logger.info("[shutdown] %s", self._what)

    def _end(self, error: BaseException) -> NoReturn:
        """Stops what was begun and leaves; on the main thread."""
        from . import (
            report_file,  # not before there is a stop, as what it takes is dear
        )
        from .telling.notify import tell_manager
        from .tree.stopping import TreeStop

        code: int = ExitCode.STOPPED
        self.active = False  # from here on it ends, and by nobody else
        if self.trigger is None:
            code, self._failed = _tell(error), True
            self._at, self.trigger = time.monotonic(), Trigger.call("a failed start")
            _thread.start_new_thread(self._see_to_it, (code,))
        else:
            self._say()
        left = self._at + STOP_SECONDS - time.monotonic()
        self._stop = TreeStop(_tree(), Mode.ABORT, 0.0, max(0.2, left), self.trigger)
        tell_manager(self._stop.stop)
        if self._own_signals > 1:
            self._stop.raise_to(Mode.KILL, self.trigger)
        report = self._stop.run()
        self._stop.stop.conclude(report)
        logger.info("[shutdown] complete in %.3fs: %s", report.seconds, report.summary)
        report_file.write(report)
        self._leave(code)

    def _leave(self, code: int) -> NoReturn:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
        fast_exit(code)
        # Switched off, it goes the slow way, which nobody hurries. Until here the
        # other thread sees to it: exit hooks are other people's code, too.
        self._over.set()
        raise SystemExit(code)

    def _see_to_it(self, code: int = ExitCode.STOPPED) -> None:
        """On a thread of its own: it ends, whatever becomes of the exception."""
        if not self._failed:
            # A log that nobody reads any more must hold up nothing.
            _thread.start_new_thread(self._say, ())
            with contextlib.suppress(Exception):
                self._ask_all()
        if self._over.wait(self._at + LAST_SECONDS - time.monotonic()):
            return
        try:
            processes = _begun()
            strike(processes)
            telling = threading.Thread(
                target=logger.warning,
                args=("[shutdown] the start does not end by itself: SIGKILL",),
                daemon=True,
            )
            telling.start()
            alive_after(processes, REAP_SECONDS)
            from .tree.belongings import release_for

            release_for(processes)
            ledger.remove_all()
            claims.withdraw()
            telling.join(TELL_SECONDS)
        finally:
            os._exit(code)

    def _ask_all(self) -> None:
        """Tells all that was begun to stop, while the main thread finds its way out.

        On that way vLLM waits for its cores, who know of no deadline.
        """
        here, trigger = home(), self.trigger
        if here is None or trigger is None:
            return
        for process in _begun():
            here.allow(
                process.pid,
                mode=str(Mode.ABORT),
                drain=0.0,
                seconds=STOP_SECONDS * CHILDREN_SHARE,
                trigger=trigger.plain(),
            )
            process.terminate()

    def _at_exit(self) -> None:
        # Where nobody runs us: a module that is started with python -m, say.
        if self.active and self.trigger is not None:
            self._end(StartInterrupted())


class StartSignals(Signals):
    """``signal`` in vLLM's modules that start a server: here the start answers."""

    @staticmethod
    def signal(number: int, handler: Any) -> Any:
        """Sets a handler, but for those of a start that is under way."""
        if start.active and number in SIGNALS:
            if start.stage == LOADING:  # started with python -m, nobody runs it
                start.reached("the configuration is made")
            return signal.getsignal(number)
        return signal.signal(number, handler)


def _begun(*parts: Part) -> list[Any]:
    """The processes that this one has begun so far, of ``parts`` or of all."""
    here = home()
    if here is None:
        return []
    return [one for part in parts or PARTS for one in here.children(part)]


def _tree() -> Tree:
    """The same, as what a stop ends."""
    from .tree.stopping import Tree

    return Tree(
        servers=_begun(Part.SERVER),
        cores=_begun(Part.CORE),
        others=_begun(Part.COORDINATOR),
        release=ledger.remove_all,
        made=lambda: {path: kind for kind, path in ledger.owned()},
    )


def _tell(error: BaseException) -> int:
    """Tells of what has ended the start as Python would; the code to leave with."""
    if isinstance(error, SystemExit):
        return exit_code(error)
    sys.excepthook(type(error), error, error.__traceback__)
    return 1


start = Start()
"""That of this process."""
