"""vllm.entrypoints.cli.serve: the server's own process leaves by the fast exit."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..process_exit import fast_exit, will_leave_fast

COMMANDS = ("vllm", "vllm-ashutdown")
"""The console scripts that do nothing after this."""


def make_cmd(original: Callable[..., None]) -> Callable[..., None]:
    """``ServeSubcommand.cmd``, the last thing that ``vllm serve`` does."""

    @functools.wraps(original)
    def cmd(args: Any) -> None:
        if not _is_the_whole_program():
            original(args)
            return
        will_leave_fast()
        original(args)
        if not _others_at_work():
            fast_exit(0)

    return cmd


def _is_the_whole_program() -> bool:
    """Whether this process runs a command of vLLM's or ours and nothing more.

    A program that calls the same function has something to do afterwards.
    """
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is None:
        return False
    path = Path(file)
    return path.name in COMMANDS or path.parts[-3:] in (
        ("vllm_ashutdown", "cli", "__main__.py"),
        ("entrypoints", "cli", "main.py"),
    )


def _others_at_work() -> bool:
    """Whether a thread is left that the interpreter would wait for."""
    return any(
        not thread.daemon and thread is not threading.main_thread()
        for thread in threading.enumerate()
    )
