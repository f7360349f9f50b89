"""vllm.entrypoints.cli.serve: the server's own process leaves by the fast exit."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..exit_code import ExitCode
from ..process_exit import (
    exit_code,
    fast_exit,
    will_leave_fast,
)
from ..program import is_the_whole_program
from ..starting import StartSignals, start
from ..tree.place import home

_OF_THEIR_OWN = ("headless", "data_parallel_multi_port_external_lb")
"""Options with which vLLM's handlers do from the start what they do later."""


def _is_left_to_vllm(args: Any) -> bool:
    """Whether what this starts is not ours to stop: nor is its start."""
    import vllm.envs as envs

    # The front end that is no Python process is stopped by vLLM's own launcher.
    rust = getattr(envs, "VLLM_USE_RUST_FRONTEND", False)
    return (
        any(getattr(args, name, False) for name in _OF_THEIR_OWN)
        or bool(rust)
        or home() is None
    )


def make_cmd(original: Callable[..., None]) -> Callable[..., None]:
    """``ServeSubcommand.cmd``, the last thing that ``vllm serve`` does."""

    @functools.wraps(original)
    def cmd(args: Any) -> None:
        if not is_the_whole_program():
            original(args)
            return
        will_leave_fast()
        if _is_left_to_vllm(args):
            start.leave()
        try:
            start.run(functools.partial(original, args))
        except SystemExit as error:
            if not _others_at_work():
                fast_exit(exit_code(error))
            raise
        if not _others_at_work():
            fast_exit(ExitCode.STOPPED)

    return cmd


def make_signal(original: ModuleType) -> ModuleType:
    """``signal``, for the launcher of several API servers."""
    return StartSignals()


def _others_at_work() -> bool:
    """Whether a thread is left that the interpreter would wait for."""
    return any(
        not thread.daemon and thread is not threading.main_thread()
        for thread in threading.enumerate()
    )
