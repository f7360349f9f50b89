"""Every kind of loop on which a stop must keep its order."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

LOOPS = ["asyncio", "debug", "uvloop"]

if sys.version_info >= (3, 12):
    LOOPS.append("eager")  # tasks begin to run as they are made

    def eager_loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        loop.set_task_factory(asyncio.eager_task_factory)
        return loop


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine on one kind of loop, closes that, and lets nothing pass by."""
    options: dict[str, Any] = {}
    if request.param == "debug":
        options["debug"] = True
    elif request.param == "uvloop":
        options["loop_factory"] = pytest.importorskip("uvloop").new_event_loop
    elif sys.version_info >= (3, 12) and request.param == "eager":
        options["loop_factory"] = eager_loop

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        complaints: list[Any] = []

        async def main() -> Any:
            loop = asyncio.get_running_loop()
            loop.slow_callback_duration = 60  # debug mode's own complaint
            loop.set_exception_handler(lambda _, context: complaints.append(context))
            return await asyncio.wait_for(coroutine, 20)

        with asyncio.Runner(**options) as runner:
            result = runner.run(main())
        gc.collect()
        assert complaints == []
        return result

    return run
