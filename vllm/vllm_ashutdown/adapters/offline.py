"""vllm.entrypoints.common.offline: a call of ``LLM`` can be interrupted.

In earlier releases the module is ``vllm.entrypoints.offline_utils``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..errors import CLOSED
from .closed import Closed
from .engine_state import state_of
from .exceptions import shutdown_error


def make_run_engine(original: Callable[..., Any]) -> Callable[..., Any]:
    """``OfflineInferenceMixin._run_engine``: an interrupt ends what it was running."""
    return _ending(original)


def make_add_requests(original: Callable[..., Any]) -> Callable[..., Any]:
    """``OfflineInferenceMixin._render_and_add_requests``: likewise."""
    return _ending(original)


def _ending(original: Callable[..., Any]) -> Callable[..., Any]:
    """Ends the requests that are left if ``original`` is left by an exception.

    Otherwise the next call would run them on, and return their answers as its own.
    """

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(vars(self).get("llm_engine"), Closed):
            raise shutdown_error(CLOSED)  # before it renders a prompt
        try:
            return original(self, *args, **kwargs)
        except BaseException:
            engine = vars(self).get("llm_engine")
            if not isinstance(engine, Closed) and state_of(engine).stop is None:
                engine.abort_request(
                    list(engine.output_processor.request_states), internal=True
                )
            raise

    return method
