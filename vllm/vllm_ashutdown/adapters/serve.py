"""vllm.entrypoints.cli.serve: the server's own process leaves by the fast exit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..process_exit import fast_exit, will_leave_fast


def make_cmd(original: Callable[..., None]) -> Callable[..., None]:
    """``ServeSubcommand.cmd``, the last thing that ``vllm serve`` does."""

    @functools.wraps(original)
    def cmd(args: Any) -> None:
        will_leave_fast()
        original(args)
        fast_exit(0)

    return cmd
