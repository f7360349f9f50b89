"""The first thing that a child process runs."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable
from typing import Any

from ..core.files import ledger
from . import child
from .child import Invitation
from .place import home, inherited


class Entry:
    """A target for ``multiprocessing``: ties the process to its parent, then runs.

    Spawned, a process finds its target by name before any plugin is loaded: this one
    brings the package and an invitation along. Forked, it has inherited both.

    Args:
        run: A function at the top of its module.
        original: What it takes the place of, for those who look at its signature.
    """

    def __init__(
        self, run: Callable[..., None], original: Callable[..., Any] | None = None
    ) -> None:
        self._run = run
        self._invitation: Invitation | None = None
        functools.update_wrapper(self, original or run)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        process = multiprocessing.current_process()
        invitation = self._invitation or inherited()
        if invitation is not None and multiprocessing.parent_process() is not None:
            tie = child.arrive(invitation, process.name)
            if tie is not None:
                ledger.on_remember = tie.tell_made
        self._run(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Entry], tuple[Any, ...]]:
        here = home()
        return _invited, (self._run, here and here.invitation)


def _invited(run: Callable[..., None], invitation: Invitation | None) -> Entry:
    entry = Entry(run)
    entry._invitation = invitation
    return entry
