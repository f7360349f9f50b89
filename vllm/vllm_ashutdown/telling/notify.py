"""The service manager hears of a stop: systemd's protocol of ``NOTIFY_SOCKET``.

The signal that begins a stop starts systemd's own clock, ``TimeoutStopSec``, which
knows nothing of a drain: it ends in SIGKILL. So the very first message asks for as much
time as the budget has. systemd takes the later of the two, so to ask never costs time.

``READY=1`` is not sent. It says when a start is over, which this package has no part
in, and with several API servers the process that may say so does not know it. A unit of
``Type=exec`` needs none.
"""

from __future__ import annotations

import logging
import os
import socket

from ..core.observer import Observer
from ..core.phase import Phase
from ..core.report import ShutdownReport
from ..core.stop import Stop

logger = logging.getLogger("vllm.ashutdown")

VARIABLE = "NOTIFY_SOCKET"

MARGIN_SECONDS = 10.0
"""On top of the budget: for the watchdog behind it, and for the kernel to take back
memory."""

LONGEST_SECONDS = 30 * 86400.0
"""Asked for where a drain has no limit. There is no word for that in the protocol."""


class Notifier(Observer):
    """Tells one service manager; it never waits, and is silent after an error."""

    def __init__(self, address: str) -> None:
        """Nothing is told yet.

        Args:
            address: As the variable has it: a path, or ``@`` and an abstract name.
        """
        self._address = address
        self._listens = True
        if address[:1] not in ("/", "@"):
            self._give_up("neither a path nor an abstract name")

    def begin(self, stop: Stop) -> None:
        """Says that the stop has begun, and asks for its time."""
        seconds = min(stop.budget.remaining() + MARGIN_SECONDS, LONGEST_SECONDS)
        self._send(
            "STOPPING=1",
            f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}",
            f"STATUS=stopping: {stop.trigger}, mode {stop.mode}",
        )

    def entered(self, stop: Stop, phase: Phase) -> None:
        self._send(f"STATUS=stopping: {phase}, {_left(stop)}")

    def moved(self, stop: Stop) -> None:
        self._send(f"STATUS=stopping: {stop.mode} in {stop.phase}, {_left(stop)}")

    def finished(self, stop: Stop, report: ShutdownReport) -> None:
        self._send(f"STATUS=stopped: {report.summary}")

    def _send(self, *lines: str) -> None:
        if not self._listens:
            return
        # A line's end in the middle of one would begin another assignment.
        text = "\n".join(" ".join(line.split("\n")) for line in lines)
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.setblocking(False)
                channel.sendto(text.encode(), address)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, why: OSError | str) -> None:
        self._listens = False
        logger.warning(
            "[shutdown] the service manager does not hear of the stop, %s=%s: %s. A "
            "drain that is longer than its time for a stop (systemd's TimeoutStopSec) "
            "may be killed: give the unit more.",
            VARIABLE,
            self._address,
            why,
        )


def _left(stop: Stop) -> str:
    seconds = stop.budget.remaining()
    return "no limit" if seconds == float("inf") else f"{seconds:.0f} s left"


def tell_manager(stop: Stop) -> None:
    """Has the service manager hear of ``stop`` from here on, if there is one.

    For the process on top of a server, which alone the manager listens to.
    """
    address = os.environ.get(VARIABLE)
    if address:
        notifier = Notifier(address)
        notifier.begin(stop)
        stop.observed_by(notifier)
