"""An ``AsyncLLM`` belongs to the loop on which it was used first, until that ends.

``asyncio.run`` cancels the engine's own tasks along with the program's, and closes
their loop; Ctrl-C may come out of one of them. vLLM then waits for its output handler
on a loop that never turns again, or calls the engine dead. The core is alive: here the
engine settles on the loop that wants to use it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ..errors import ENDED
from . import core_client
from .exceptions import shutdown_error


def settle(engine: Any) -> None:
    """Has the running loop serve ``engine``, if what did is over.

    Two comparisons for each request where there is nothing to do.
    """
    handler, here = engine.output_handler, asyncio.get_running_loop()
    if handler is not None and handler.get_loop() is here and not handler.done():
        return
    client = engine.engine_core
    if handler is None:  # vLLM starts it here
        core_client.settle(client, shutdown_error(ENDED))
        return
    loop = handler.get_loop()
    if loop is not here and loop.is_running():
        return  # used from two loops at once: vLLM's to answer
    if core_client.core_is_dead(client) or _failed(handler):
        return  # it is dead, and says so
    if loop is not here:
        _leave(loop, engine)
    core_client.settle(client, shutdown_error(ENDED))
    engine.output_handler = None
    engine._run_output_handler()


def _failed(handler: asyncio.Task[Any]) -> bool:
    """Whether it ended by itself: it has caught an error, and has passed it on."""
    return handler.done() and not handler.cancelled() and handler.exception() is None


def _leave(loop: asyncio.AbstractEventLoop, engine: Any) -> None:
    """Ends what is left on ``loop``, where nobody waits for it any more."""
    core_client.forget_pending([engine.output_handler])
    if not loop.is_closed():
        engine.output_handler.cancel()
    processor = engine.output_processor
    for state in processor.request_states.values():
        state.queue = None  # it would wake a task of that loop
    left = processor.abort_requests(list(processor.request_states), internal=True)
    core_client.abort_in_core(engine.engine_core, left)
