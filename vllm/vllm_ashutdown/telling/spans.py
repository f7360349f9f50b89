"""A stop as spans of OpenTelemetry: ``shutdown``, and a child for each phase.

They are made from the report when all is over, with the times that it has. Only where
vLLM traces is this module imported, and vLLM has set up the provider.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

import anyio
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from ..core.observer import Observer
from ..core.phase import Outcome, Phase, PhaseRecord
from ..core.report import ShutdownReport
from ..core.stop import Stop
from ..core.thread import OnceInThread
from ..version import __version__

logger = logging.getLogger("vllm.ashutdown")

ROOT = "shutdown"
PREFIX = "vllm.shutdown."
"""Of each attribute."""

Attributes = Mapping[str, str | int | float | bool]


class Spans(Observer):
    """Makes the spans of one stop when that is over."""

    def __init__(self, now: Callable[[], int] = time.time_ns) -> None:
        """``now`` is in nanoseconds since the epoch: a span has no other clock."""
        self._now = now

    def finished(self, stop: Stop, report: ShutdownReport) -> None:
        # From the end back: that is the moment that both clocks know.
        began = self._now() - _nanoseconds(report.seconds)
        tracer = trace.get_tracer("vllm_ashutdown", __version__)
        root = tracer.start_span(ROOT, start_time=began, attributes=_of(report))
        if not report.clean:
            root.set_status(StatusCode.ERROR, report.summary)
        around = trace.set_span_in_context(root)
        for record in report.phases:
            starts = began + _nanoseconds(record.began)
            span = tracer.start_span(
                f"{ROOT}.{record.phase}",
                context=around,
                start_time=starts,
                attributes=_of_phase(record),
            )
            if _went_wrong(record):
                span.set_status(StatusCode.ERROR, record.detail)
            span.end(starts + _nanoseconds(record.spent))
        root.end(began + _nanoseconds(report.seconds))


async def flushed(seconds: float) -> None:
    """Returns when all that is noted is sent, spans of requests too, or time is out.

    A receiver that does not answer must hold up no stop.
    """
    send = getattr(trace.get_tracer_provider(), "force_flush", None)
    if send is None:  # vLLM has set up none
        return
    # Not every exporter keeps to the provider's own limit.
    work = OnceInThread("vllm-ashutdown-spans", lambda left: send(round(left * 1000)))
    with anyio.move_on_after(seconds) as scope:
        await work.result(seconds)
    if scope.cancelled_caught:
        logger.warning(
            "[shutdown] not all spans were sent within %.1fs: the receiver of "
            "--otlp-traces-endpoint does not answer",
            seconds,
        )


def _of(report: ShutdownReport) -> Attributes:
    counts = report.requests
    return {
        PREFIX + "trigger": str(report.trigger),
        PREFIX + "mode": str(report.mode),
        PREFIX + "final_mode": str(report.final_mode),
        PREFIX + "clean": report.clean,
        PREFIX + "requests.completed": counts.completed,
        PREFIX + "requests.aborted": counts.aborted,
        PREFIX + "requests.refused": counts.refused,
        PREFIX + "leftovers": len(report.leftovers),
    }


def _of_phase(record: PhaseRecord) -> Attributes:
    return {
        PREFIX + "phase": str(record.phase),
        PREFIX + "outcome": str(record.outcome),
        PREFIX + "detail": record.detail,
        PREFIX + "allotted_seconds": record.requested,
    }


def _went_wrong(record: PhaseRecord) -> bool:
    """As in the report: a drain whose deadline came is no error."""
    late = record.outcome is Outcome.EXPIRED and record.phase is not Phase.DRAIN
    return late or record.outcome is Outcome.FAILED


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
