"""vllm.v1.engine.core: an engine core process leaves as soon as it may.

The function here is the target of the process: under spawn the child finds it by
name, and with it this package, before anything else of vLLM runs there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import register
from ..process_exit import run_and_leave, stop_collecting
from ..seams import installer

SEAM = "EngineCoreProc.run_engine_core"


def make_run_engine_core(original: Callable[..., None]) -> Callable[..., None]:
    """``EngineCoreProc.run_engine_core``."""
    return run_engine_core


def run_engine_core(*args: Any, **kwargs: Any) -> None:
    """Runs vLLM's own core, then leaves by the fast exit."""
    register()
    from vllm.v1.engine.core import EngineCoreProc

    own = installer.original_or(SEAM, EngineCoreProc.run_engine_core)
    run_and_leave(own, *args, **kwargs)


def make_shutdown(original: Callable[..., None]) -> Callable[..., None]:
    """``EngineCoreProc.shutdown``: the last thing that a core process does."""

    @functools.wraps(original)
    def shutdown(self: Any) -> None:
        stop_collecting()
        original(self)

    return shutdown
