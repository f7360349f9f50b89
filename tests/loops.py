"""The kinds of event loop on which a program may use and stop an engine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import uvloop

__all__ = ["RUNNERS", "eager_loop"]


def eager_loop() -> asyncio.AbstractEventLoop:
    """One whose tasks begin to run as they are made."""
    loop = asyncio.new_event_loop()
    loop.set_task_factory(_eager_task)
    return loop


def _eager_task(loop: Any, coroutine: Any, **options: Any) -> asyncio.Future[Any]:
    if sys.version_info >= (3, 12):
        return asyncio.eager_task_factory(loop, coroutine, **options)
    # The same order of events before Python had it: the first step, which the new task
    # has just put last in line, is run on the spot.
    if not loop.is_running():
        return asyncio.Task(coroutine, loop=loop, **options)
    tasks: Any = asyncio.tasks
    task: asyncio.Future[Any] = tasks._PyTask(coroutine, loop=loop, **options)
    first_step, outer = loop._ready.pop(), asyncio.current_task(loop)
    if outer is not None:
        tasks._leave_task(loop, outer)
    try:
        first_step._run()
    finally:
        if outer is not None:
            tasks._enter_task(loop, outer)
    return task


RUNNERS: dict[str, Callable[[], asyncio.Runner]] = {
    "asyncio": asyncio.Runner,
    "debug": lambda: asyncio.Runner(debug=True),
    "uvloop": lambda: asyncio.Runner(loop_factory=uvloop.new_event_loop),
    "eager": lambda: asyncio.Runner(loop_factory=eager_loop),
}
