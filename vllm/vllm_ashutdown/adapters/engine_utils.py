"""vllm.v1.engine.utils: the core processes get a home."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..tree import child
from ..tree.part import Part
from ..tree.place import home, take_in


def make_init(original: Callable[..., None]) -> Callable[..., None]:
    """``CoreEngineProcManager.__init__``."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        # Whose core this is has no use for them, and knows this module, too.
        from ..reclaiming import reclaim_once
        from ..starting import start
        from .readiness import get_ready

        if child.current() is None:
            reclaim_once()
        home()  # there before they are: forked, they inherit its address
        start.reached("the engine cores start")
        with start.whole():
            original(self, *args, **kwargs)
            take_in(self.processes, Part.CORE)
            get_ready()

    return init
