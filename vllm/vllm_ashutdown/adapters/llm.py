"""vllm.entrypoints.llm: ``LLM`` can be closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.report import ShutdownReport
from ..core.trigger import Trigger
from . import llm_engine
from .closed import Closed, close_parts

_PARTS = ("llm_engine", "renderer", "input_processor", "pooling_io_processors")


def make_shutdown(original: None) -> Callable[..., Any]:
    """``LLM.shutdown``."""

    def shutdown_method(self: Any) -> ShutdownReport | None:
        """Shuts the engine down and returns when its memory is free.

        ``with LLM(...) as llm:`` does the same at the end of the block. Every call
        that needs the engine raises an ``EngineClosedError`` from then on; to close
        it again does nothing.

        Returns:
            What the stop did, and what it left; ``None`` if it was closed before, or
            is being closed further up on this thread.
        """
        engine = vars(self).get("llm_engine")
        if engine is None or isinstance(engine, Closed):
            return None  # never made, or closed before
        if vars(self).get("_cached_repr", "") is None:
            self._cached_repr = f"LLM(model={self.model_config.model!r}, closed)"
        report = llm_engine.shutdown(engine, Trigger.call("shutdown()"))
        close_parts(self, _PARTS)
        return report

    shutdown_method.__name__ = "shutdown"
    shutdown_method.__qualname__ = "LLM.shutdown"
    return shutdown_method


def make_enter(original: None) -> Callable[..., Any]:
    """``LLM.__enter__``."""

    def enter_method(self: Any) -> Any:
        """``with llm:`` shuts it down at the end of the block."""
        return self

    enter_method.__name__ = "__enter__"
    return enter_method


def make_exit(original: None) -> Callable[..., Any]:
    """``LLM.__exit__``."""

    def exit_method(self: Any, *error: Any) -> None:
        self.shutdown()

    exit_method.__name__ = "__exit__"
    return exit_method
