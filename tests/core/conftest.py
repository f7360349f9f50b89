"""Every kind of loop on which a stop must keep its order."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.loops import RUNNERS


@pytest.fixture(params=RUNNERS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine on one kind of loop, closes that, and lets nothing pass by."""

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        complaints: list[Any] = []

        async def main() -> Any:
            loop = asyncio.get_running_loop()
            loop.slow_callback_duration = 60  # debug mode's own complaint
            loop.set_exception_handler(lambda _, context: complaints.append(context))
            return await asyncio.wait_for(coroutine, 20)

        with RUNNERS[request.param]() as runner:
            result = runner.run(main())
        gc.collect()
        assert complaints == []
        return result

    return run
