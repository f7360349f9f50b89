"""vllm.utils.system_utils: named semaphores of vLLM's processes get an owner.

The lock that a core shares with its workers and the queue for multimodal tensors are
made of them. Python unlinks them in an exit hook, which a process that is killed does
not run; then its resource tracker calls them leaked.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from ..core.files import ledger

_MADE_OF = ("Lock", "RLock", "Semaphore", "BoundedSemaphore")
"""What everything else that ``multiprocessing`` synchronizes with consists of."""


def make_get_mp_context(original: Callable[[], Any]) -> Callable[[], Any]:
    """``get_mp_context``."""

    @functools.wraps(original)
    def get_mp_context() -> Any:
        # A copy: the context itself is the whole program's.
        context = copy.copy(original())
        for name in _MADE_OF:
            setattr(context, name, _remembered(getattr(context, name)))
        return context

    return get_mp_context


def _remembered(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        lock = make(*args, **kwargs)
        ledger.remember_semaphore(lock)
        return lock

    return made
