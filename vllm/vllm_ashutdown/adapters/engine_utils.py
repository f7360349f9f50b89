"""vllm.v1.engine.utils: the core processes get a home."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..tree.home import home, take_in


def make_init(original: Callable[..., None]) -> Callable[..., None]:
    """``CoreEngineProcManager.__init__``."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        home()  # there before they are: forked, they inherit its address
        original(self, *args, **kwargs)
        take_in(self.processes)

    return init
