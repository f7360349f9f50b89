"""The files that a process makes for its engine to talk through."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Generator, Iterable
from pathlib import Path

logger = logging.getLogger("vllm.ashutdown")


class FileLedger:
    """Remembers which files this process owns, so that it can take them away.

    vLLM only makes up names: sockets are bound, and a store is opened, by
    whoever gets the name, and whoever that is may be gone before the library
    underneath gets round to unlinking. So the maker of the name is the owner.
    """

    def __init__(self) -> None:
        self._owned: dict[str, int] = {}
        self._making = threading.local()

    def remember(self, path: str) -> None:
        """Notes that ``path`` is this process's to remove, at its exit at last."""
        if not self._owned:
            atexit.register(self.remove_all)
        self._owned[path] = os.getpid()
        for made in getattr(self._making, "stack", ()):
            made.append(path)

    @contextlib.contextmanager
    def making(self) -> Generator[list[str], None, None]:
        """Collects what is remembered on this thread in the block."""
        stack: list[list[str]] = self._making.__dict__.setdefault("stack", [])
        made: list[str] = []
        stack.append(made)
        try:
            yield made
        finally:
            # By identity: two blocks may have collected the same.
            stack[:] = [one for one in stack if one is not made]

    def remove(self, paths: Iterable[str]) -> None:
        """Removes those of ``paths`` that are owned, and forgets them.

        A forked child has inherited the notes and owns none of them.
        """
        for path in paths:
            if self._owned.pop(path, None) == os.getpid():
                try:
                    Path(path).unlink(missing_ok=True)
                except OSError as error:
                    logger.warning("[shutdown] %s stays: %s", path, error)

    def remove_all(self) -> None:
        """Removes every file that this process owns."""
        self.remove(list(self._owned))

    def existing(self, paths: Iterable[str]) -> list[str]:
        """Those of ``paths`` that are there."""
        return [path for path in paths if os.path.lexists(path)]


ledger = FileLedger()
"""That of this process."""
