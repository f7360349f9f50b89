"""How a program ends that is an actor of Ray's.

An actor that leaves kills its child processes before it does anything else: before its
own ``__ray_shutdown__``, and before the interpreter's exit hooks. An engine that is
closed there finds its core killed, and says so. So it is closed a moment earlier, in
the call that says that the actor leaves; ``__ray_terminate__`` makes that call, too.

Nothing of Ray runs before the children are killed where the last handle of an actor is
dropped, or where it is killed. Then it is their lifelines that take them along.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("vllm.ashutdown")

_CLOSES = "_vllm_ashutdown_closes"


def before_leaving(close: Callable[[], object]) -> None:
    """Has an actor call ``close`` when it says that it leaves.

    Where this process is no actor it does nothing, and it imports nothing of Ray's.
    A second call does nothing, either.
    """
    ray, actor = sys.modules.get("ray"), sys.modules.get("ray.actor")
    leave: Any = getattr(actor, "exit_actor", None)
    if leave is None or hasattr(leave, _CLOSES) or not _is_actor(ray):
        return

    @functools.wraps(leave)
    def exit_actor(*args: Any, **kwargs: Any) -> Any:
        try:
            close()
        finally:
            leave(*args, **kwargs)

    setattr(exit_actor, _CLOSES, True)
    vars(actor)["exit_actor"] = exit_actor


def _is_actor(ray: Any) -> bool:
    try:
        if not ray.is_initialized():  # to ask would begin a cluster
            return False
        return ray.get_runtime_context().get_actor_id() is not None
    except Exception as error:
        # Half imported, out of reach, or another Ray than is known here: an engine has
        # just been made, and ends as it would without this.
        logger.debug("[shutdown] whether this is an actor of Ray's: %r", error)
        return False
