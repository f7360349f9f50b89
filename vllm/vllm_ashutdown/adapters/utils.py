"""vllm.v1.utils: the launcher of several API servers, and each of those."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import register
from ..process_exit import run_and_leave
from ..seams import installer
from ..tree.entry import Entry
from ..tree.part import Part
from ..tree.place import home, take_in

SEAM = "run_api_server_worker_proc"


def make_run_api_server_worker_proc(original: Callable[..., None]) -> Any:
    """``run_api_server_worker_proc``, the target of an API server's process."""
    return Entry(run_api_server_worker_proc, original)


def run_api_server_worker_proc(*args: Any, **kwargs: Any) -> None:
    """Runs vLLM's own API server, then leaves by the fast exit."""
    register()
    from vllm.v1 import utils

    own = installer.original_or(SEAM, utils.run_api_server_worker_proc)
    run_and_leave(own, *args, **kwargs)


def make_init(original: Callable[..., None]) -> Callable[..., None]:
    """``APIServerProcessManager.__init__``."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        from ..starting import start  # of a server alone, and dear

        home()
        start.reached("engine cores and API servers start")
        with start.whole():
            original(self, *args, **kwargs)
            take_in(self.processes, Part.SERVER)

    return init


def make_wait(original: Callable[..., None]) -> Callable[..., None]:
    """``wait_for_completion_or_failure``: what the launcher does while it serves."""

    @functools.wraps(original)
    def wait_for_completion_or_failure(
        api_server_manager: Any, engine_manager: Any = None, coordinator: Any = None
    ) -> None:
        watch = functools.partial(
            original, api_server_manager, engine_manager, coordinator
        )
        servers = list(api_server_manager.processes)
        if home() is None or not all(hasattr(one, "_popen") for one in servers):
            watch()  # the front end that is no Python process has no home
            return
        from .launching import serve

        serve(watch, api_server_manager, engine_manager, coordinator)

    return wait_for_completion_or_failure
