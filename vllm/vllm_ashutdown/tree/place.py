"""Whether this process is a parent: its home, and the one that it was forked from.

Each process of the tree has this; what is dear about being a parent it imports when it
is to become one.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import child
from .part import Part

if TYPE_CHECKING:
    from .child import Invitation
    from .home import Home

logger = logging.getLogger("vllm.ashutdown")


class _Place:
    """What this process has: a home of its own, and whose it was forked from."""

    def __init__(self) -> None:
        self.home: Home | None = None
        self.inherited: Invitation | None = None
        # Reentrant: a signal handler may ask for the home that its thread asks for.
        self.lock = threading.RLock()

    def before_fork(self) -> None:
        """Lets nobody open what the child would not know to close."""
        self.lock.acquire()

    def after_fork_here(self) -> None:
        """In the parent."""
        self.lock.release()

    def after_fork(self) -> None:
        """In the child: what is known here is the parent's."""
        self.lock = threading.RLock()
        child.forsake()
        self.inherited = None
        if self.home is not None:
            self.inherited = self.home.invitation
            self.home.forsake()
            self.home = None


_place = _Place()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_place.before_fork,
        after_in_parent=_place.after_fork_here,
        after_in_child=_place.after_fork,
    )


def home() -> Home | None:
    """This process's home, made at the first asking; ``None`` where none can be."""
    if sys.platform != "linux":
        return None  # abstract addresses, and the kernel's word about a closed end
    with _place.lock:
        if _place.home is None:
            # A handler must not ask in the middle of this: half a module is none. Ours
            # are set by modules that have imported it before they set them.
            from .home import Home

            try:
                made = Home(_place.lock)
            except OSError as error:
                logger.warning(
                    "[shutdown] children are not tied to this one: %s", error
                )
                return None
            _place.home = _place.home or made  # a signal handler may have been faster
        return _place.home


def take_in(processes: Iterable[Any], part: Part = Part.CORE) -> None:
    """Makes started ``multiprocessing`` processes children of this home."""
    from .reaping import reap_in_turn

    here = home()
    for process in processes:
        reap_in_turn(process)
        if here is not None and process.pid is not None:
            here.adopt(process, part)


def inherited() -> Invitation | None:
    """To the home of the process that this one was forked from."""
    return _place.inherited
