"""vllm.entrypoints.common.offline: a call of ``LLM`` can be interrupted.

In earlier releases the module is ``vllm.entrypoints.offline_utils``.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from ..errors import CLOSED
from .closed import Closed, part_of
from .engine_state import state_of
from .exceptions import shutdown_error

logger = logging.getLogger("vllm.ashutdown")


def make_run_engine(original: Callable[..., Any]) -> Callable[..., Any]:
    """``OfflineInferenceMixin._run_engine``: an interrupt ends what it was running.

    Otherwise the next call would run that on, and return its answers as its own.
    """

    @functools.wraps(original)
    def run_engine(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except Exception:
            raise  # as vLLM has it
        except BaseException:
            engine = vars(self).get("llm_engine")
            _end(engine, _requests(engine))
            raise

    return run_engine


def make_add_requests(original: Callable[..., Any]) -> Callable[..., Any]:
    """``OfflineInferenceMixin._render_and_add_requests``: likewise.

    An error in the midst of it is vLLM's own to answer, and it does.
    """

    @functools.wraps(original)
    def add_requests(self: Any, *args: Any, **kwargs: Any) -> Any:
        engine = vars(self).get("llm_engine")
        if isinstance(engine, Closed):
            raise shutdown_error(CLOSED)  # before it renders a prompt
        before = _requests(engine)
        try:
            return original(self, *args, **kwargs)
        except Exception:
            raise
        except BaseException:
            _end(engine, _requests(engine) - before)
            raise

    return add_requests


def _requests(engine: Any) -> set[str]:
    """What is in flight there; nothing in an engine that is closed or half-built."""
    if engine is None or isinstance(engine, Closed):
        return set()
    return set(getattr(part_of(engine, "output_processor"), "request_states", ()))


def _end(engine: Any, requests: set[str]) -> None:
    """Ends ``requests``; nothing that goes wrong in it hides the interrupt."""
    if not requests or state_of(engine).stop is not None:
        return
    try:
        engine.abort_request(list(requests), internal=True)
    except Exception as error:
        logger.debug("[shutdown] interrupted, and not ended: %r", error)
