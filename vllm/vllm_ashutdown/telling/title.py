"""The title of a server's process shows its phase, in ``ps`` and ``top``."""

from __future__ import annotations

from collections.abc import Callable

from ..core.observer import Observer
from ..core.phase import Phase
from ..core.report import ShutdownReport
from ..core.stop import Stop


class Title(Observer):
    """Puts the phase behind the title that the process has; takes it off in the end."""

    def __init__(self) -> None:
        """Made while there is time: what it imports is too slow for a stop.

        Without the package ``setproctitle`` it does nothing, as vLLM itself does.
        """
        self._set: Callable[[str], object] | None = None
        self._title = ""
        try:
            import setproctitle
        except ImportError:
            return
        self._set, self._title = setproctitle.setproctitle, setproctitle.getproctitle()

    def entered(self, stop: Stop, phase: Phase) -> None:
        if self._set is not None:
            self._set(f"{self._title} [shutdown: {phase}]")

    def finished(self, stop: Stop, report: ShutdownReport) -> None:
        if self._set is not None:
            self._set(self._title)
