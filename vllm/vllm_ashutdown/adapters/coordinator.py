"""vllm.v1.engine.coordinator: the data-parallel coordinator stops when it is told."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FrameType
from typing import Any

from .. import register
from ..process_exit import run_and_leave
from ..seams import installer
from ..tree import child
from ..tree.entry import Entry
from ..tree.part import Part
from ..tree.place import home, take_in

SEAM = "DPCoordinatorProc.run_coordinator"


def make_init(original: Callable[..., None]) -> Callable[..., None]:
    """``DPCoordinator.__init__``."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        from ..starting import start  # cores know this module, and start nothing

        home()  # there before it is: forked, it inherits its address
        with start.whole():
            original(self, *args, **kwargs)
            take_in([self.proc], Part.COORDINATOR)

    return init


def make_run_coordinator(original: Callable[..., None]) -> Callable[..., None]:
    """``DPCoordinatorProc.run_coordinator``."""
    return Entry(run_coordinator, original)


def run_coordinator(*args: Any, **kwargs: Any) -> None:
    """Runs vLLM's own coordinator, then leaves by the fast exit."""
    register()
    tie = child.current()
    if tie is not None:
        for number in child.SIGNALS:
            tie.means(number, _interrupt)
    from vllm.v1.engine.coordinator import DPCoordinatorProc

    own = installer.original_or(SEAM, DPCoordinatorProc.run_coordinator)
    run_and_leave(own, *args, **kwargs)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # vLLM sets no handlers here, but knows what to do with Ctrl-C.
    raise KeyboardInterrupt
