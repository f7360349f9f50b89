"""Who looks on at the stop of an engine, wherever that engine runs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

from ..core.observer import Observer
from ..core.reading import counts_of, of_stop
from .engine_state import EngineState

logger = logging.getLogger("vllm.ashutdown")

LOGGERS = "vllm.v1.metrics.loggers"


def observers(engine: Any, state: EngineState) -> list[Observer]:
    """Those of a stop that begins, whose ``state.stop`` is there.

    What cannot be shown must not keep an engine from being stopped.
    """
    try:
        return list(_made(engine, state))
    except Exception:
        logger.warning(
            "[shutdown] nobody is shown this stop; it goes on", exc_info=True
        )
        return []


def _made(engine: Any, state: EngineState) -> Iterator[Observer]:
    if state.meter is None and _has_metrics_of_vllm(engine):
        # Imported only here: a program without vLLM's metrics gets none of ours.
        from ..telling.metrics import Meter

        stop, tally = state.stop, state.tally
        assert stop is not None
        state.meter = Meter(
            lambda: of_stop(stop, tally), lambda: counts_of(stop, tally)
        )
    if state.meter is not None:
        yield state.meter
    if traces(engine):
        from ..telling.spans import Spans

        yield Spans()


def traces(engine: Any) -> bool:
    """Whether vLLM sends spans of this engine somewhere."""
    config = getattr(engine, "observability_config", None)
    return getattr(config, "otlp_traces_endpoint", None) is not None


def _has_metrics_of_vllm(engine: Any) -> bool:
    """Whether vLLM keeps metrics of this engine in the process's own registry."""
    manager = getattr(engine, "logger_manager", None)
    own = getattr(sys.modules.get(LOGGERS), "PrometheusStatLogger", None)
    # Exactly that class: one that is derived from it may report elsewhere.
    return any(type(one) is own for one in getattr(manager, "stat_loggers", ()))
