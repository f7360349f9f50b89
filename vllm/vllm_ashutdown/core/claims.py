"""What an instance owns outside its processes, written down where the next one looks.

A process that is killed gives nothing back that has a name. So the top of each tree
keeps a list of what it and its children make, one line each, written when it is made.
A lock on that file says that the owner lives: the kernel drops it with the owner,
whatever that dies of, and no pid comes into it that someone else may have by then.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import logging
import os
import platform
import secrets
import stat
import sys
import tempfile
import threading
from collections.abc import Collection
from pathlib import Path

from .. import settings

logger = logging.getLogger("vllm.ashutdown")

SUFFIX = ".jsonl"


def place() -> Path:
    """The directory of the lists of this user's instances."""
    named = settings.state_directory()
    if named:
        return Path(named)
    return place_in(Path(tempfile.gettempdir()))


def place_in(temporary: Path) -> Path:
    """The same where nothing else is set and ``temporary`` is what it is called."""
    return temporary / f"vllm-ashutdown-{os.getuid()}"


def is_ours(directory: Path) -> bool:
    """Whether nobody but this user can have written what lies in ``directory``."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    private = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and private


class Claims:
    """The list of this process and of all that it begins.

    Nothing here may cost a server its start: where there is no place to write, a
    warning says so, once, and nothing can be reclaimed after a kill.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._path: Path | None = None
        self._paths: list[str] = []
        self._given_up = False
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forsake)

    def note(self, kind: str, path: str) -> None:
        """Writes down what has been made, or is about to be. Never raises.

        Args:
            kind: A :class:`~vllm_ashutdown.core.files.Kind`.
            path: As the ledger has it.
        """
        with self._lock:
            if self._given_up:
                return
            try:
                if self._file is None:
                    self._open()
                self._paths.append(path)
                self._write({"kind": str(kind), "path": path, "is": identity(path)})
            except OSError as error:
                self._given_up = True
                logger.warning(
                    "[shutdown] cannot write to %s (%s): what a kill leaves here "
                    "stays. %s names another directory.",
                    place(),
                    error,
                    settings.STATE_DIRECTORY.name,
                )

    def withdraw(self) -> None:
        """Ends the list, at the end of its process; if there is nothing left of it."""
        with self._lock:
            if self._file is None or self._path is None:
                return
            if not any(os.path.lexists(path) for path in self._paths):
                self._path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # others' lists are in it
                    self._path.parent.rmdir()
            os.close(self._file)
            self._file = self._path = None
            self._paths.clear()

    def settle(self, paths: Collection[str]) -> None:
        """Notes that ``paths`` are done with; without another one the list ends.

        A program whose engine is closed may go on for days, or end by a signal. What
        it makes next begins another list.
        """
        with self._lock:
            self._paths = [
                path
                for path in self._paths
                if path not in paths or os.path.lexists(path)
            ]
            if not self._paths:
                self.withdraw()

    def _open(self) -> None:
        directory = place()
        while self._file is None:
            self._path = directory / f"{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_ours(directory):
                raise PermissionError(f"{directory} is not this user's alone")
            # Between the two, one that ends may have removed the empty directory.
            with contextlib.suppress(FileNotFoundError):
                flags = os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_RDWR | os.O_CLOEXEC
                self._file = self._locked(os.open(self._path, flags, 0o600))
        head = {"pid": os.getpid(), "command": sys.argv[:3], "host": platform.node()}
        self._write(head)

    def _locked(self, file: int) -> int | None:
        """``file``, locked; ``None`` if someone took it for a dead one's."""
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_nlink:
            return file
        os.close(file)
        return None

    def _write(self, line: dict[str, object]) -> None:
        assert self._file is not None
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def _forsake(self) -> None:
        """In a forked child: the list is its parent's, and so is the lock."""
        self._lock = threading.RLock()
        if self._file is not None:
            os.close(self._file)
        self._file = self._path = None
        self._paths = []


def identity(path: str) -> list[int] | None:
    """What tells the file at ``path`` from another one there; none if there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return [found.st_dev, found.st_ino]


claims = Claims()
"""Those of this process."""
# Registered first, it runs last: behind all that takes away what the list names.
atexit.register(claims.withdraw)
