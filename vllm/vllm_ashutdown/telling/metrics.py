"""What Prometheus sees of a stop, with vLLM's own metrics, at ``/metrics``.

With several API servers each has its own values, in a file of a directory that they
share, and whichever is asked puts them together. How is said with each gauge: all are
``live``, so a server that is gone counts no more.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from ..core.observer import Observer
from ..core.phase import Phase, PhaseRecord
from ..core.reading import COMPLETE, PHASES, SERVING, Reading
from ..core.report import RequestCounts, ShutdownReport
from ..core.stop import Stop

KINDS = ("completed", "aborted", "refused")
"""As the report counts requests."""


class ShutdownMetrics:
    """The metrics of this process; there is one set, whatever becomes of engines."""

    def __init__(self) -> None:
        """They are in no registry yet."""
        self.phase = Gauge(
            "vllm:shutdown_phase",
            "1 for what the server is at, 0 for the rest; the number of API servers "
            "that are at it, where there are several.",
            ["phase"],
            registry=None,
            multiprocess_mode="livesum",
        )
        self.remaining = Gauge(
            "vllm:shutdown_remaining_seconds",
            "Seconds left of the budget of the stop, or of the prepared drain; +Inf "
            "without a limit, 0 while it serves.",
            registry=None,
            # One budget for all of them, read by whoever is asked as it is asked.
            multiprocess_mode="livemostrecent",
        )
        self.in_flight = Gauge(
            "vllm:shutdown_requests_in_flight",
            "Requests that a drain still waits for; 0 while it serves.",
            registry=None,
            multiprocess_mode="livesum",
        )
        self.requests = Counter(
            "vllm:shutdown_requests",
            "Requests since a stop or a drain began, by how they ended: completed by "
            "themselves, aborted by the stop, refused at the door.",
            ["kind"],
            registry=None,
        )
        self.phase_seconds = Gauge(
            "vllm:shutdown_phase_seconds",
            "Seconds that a phase of the stop took; the longest, of several servers.",
            ["phase"],
            registry=None,
            multiprocess_mode="livemax",
        )
        self.leftovers = Gauge(
            "vllm:shutdown_leftovers",
            "What the audit found left over.",
            registry=None,
            multiprocess_mode="livesum",
        )
        for phase in PHASES:
            self.phase.labels(phase)
        for kind in KINDS:
            self.requests.labels(kind)

    def expose(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Puts them into ``registry``, where they are not.

        An engine that is made later takes all of vLLM's metrics out, and these too.
        """
        for metric in vars(self).values():
            with contextlib.suppress(ValueError):  # it is there
                registry.register(metric)


class _Place:
    """Where this process keeps them, once it is known to need them."""

    metrics: ShutdownMetrics | None = None
    lock = threading.Lock()


def metrics() -> ShutdownMetrics:
    """Those of this process, made at the first asking."""
    with _Place.lock:
        if _Place.metrics is None:
            _Place.metrics = ShutdownMetrics()
        return _Place.metrics


class Meter(Observer):
    """Keeps the metrics of this process equal to how one engine stands."""

    def __init__(
        self,
        read: Callable[[], Reading],
        count: Callable[[], RequestCounts],
        into: ShutdownMetrics | None = None,
    ) -> None:
        """Reads once, so that everything is there from the beginning.

        Args:
            read: How it stands.
            count: What became of the requests.
            into: The metrics; those of this process, if not given.
        """
        self._read, self._count = read, count
        self._metrics = into or metrics()
        self._metrics.expose()
        self._counted = RequestCounts()
        self._lock = threading.Lock()
        self.refresh()

    def before_a_look(self) -> None:
        """Somebody is about to read them: they are there, and up to date."""
        self._metrics.expose()
        self.refresh()

    def refresh(self) -> None:
        """Sets all that changes by itself."""
        with self._lock:
            self._show(self._read())
            self._add(self._count())

    def _show(self, reading: Reading) -> None:
        for phase in PHASES:
            self._metrics.phase.labels(phase).set(phase == reading.phase)
        self._metrics.remaining.set(reading.remaining)
        # Serving, it is not known: nobody counts what is in flight in the engine.
        waited_for = 0 if reading.phase == SERVING else reading.in_flight
        self._metrics.in_flight.set(waited_for)

    def _add(self, counts: RequestCounts) -> None:
        for kind in KINDS:
            more = getattr(counts, kind) - getattr(self._counted, kind)
            if more > 0:
                self._metrics.requests.labels(kind).inc(more)
                setattr(self._counted, kind, getattr(counts, kind))

    def restart(self) -> None:
        """What is counted begins at nothing again: a drain was taken back."""
        with self._lock:
            self._counted = RequestCounts()

    def entered(self, stop: Stop, phase: Phase) -> None:
        self.refresh()

    def moved(self, stop: Stop) -> None:
        self.refresh()

    def left(self, stop: Stop, record: PhaseRecord) -> None:
        self._metrics.phase_seconds.labels(str(record.phase)).set(record.spent)
        self.refresh()

    def finished(self, stop: Stop, report: ShutdownReport) -> None:
        with self._lock:
            self._show(Reading(COMPLETE))
            self._add(report.requests)
        for record in report.phases:  # HTTP is closed outside of the engine's stop
            self._metrics.phase_seconds.labels(str(record.phase)).set(record.spent)
        self._metrics.leftovers.set(len(report.leftovers))
