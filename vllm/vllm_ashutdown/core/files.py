"""What a process makes under a name that others can see, and that outlives it."""

from __future__ import annotations

import atexit
import contextlib
import enum
import logging
import os
import shutil
import threading
from collections.abc import Callable, Generator, Iterable
from multiprocessing import resource_tracker, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from .claims import claims

if TYPE_CHECKING:
    from multiprocessing.shared_memory import SharedMemory

logger = logging.getLogger("vllm.ashutdown")

_SHARED = "/dev/shm/"  # noqa: S108, glibc's place for it: no file is made here
_SEMAPHORE = f"{_SHARED}sem."


class Kind(enum.StrEnum):
    """What is behind a name; it decides how that is released."""

    FILE = "file"
    IPC_SOCKET = "ipc socket"
    """ZMQ binds it, and unlinks it only if its context is ended in time."""
    SOCKET_FILE = "socket file"
    """Where a server listens for clients."""
    STORE = "store"
    """The file through which torch's processes find each other."""
    DIRECTORY = "directory"
    """With all that is in it."""
    SHARED_MEMORY = "shared memory"
    SEMAPHORE = "semaphore"


def memory_path(name: str) -> str:
    """The path that stands for shared memory ``name``.

    It is where Linux shows it (shm_overview(7)). Elsewhere it is only a name: it can
    be released by it and not be looked at.
    """
    return _SHARED + name.lstrip("/")


def semaphore_path(name: str) -> str:
    """The same for a named semaphore (sem_overview(7))."""
    return _SEMAPHORE + name.lstrip("/")


def release(kind: str, path: str) -> None:
    """Takes away what this process, or one that is dead, has made.

    Whoever has shared memory mapped or a semaphore open keeps it: only the name goes.
    What is gone already is no error.

    Args:
        kind: A :class:`Kind`.
        path: As :meth:`FileLedger.owned` gives it.

    Raises:
        OSError: it stays.
    """
    if kind == Kind.DIRECTORY:
        # What others remove from it at the same moment is no error either.
        shutil.rmtree(path, ignore_errors=True)
        if os.path.lexists(path):
            raise OSError(f"{path} cannot be removed")
    elif kind == Kind.SHARED_MEMORY:
        from _posixshmem import shm_unlink  # type: ignore[import-not-found]

        _unlink("/" + path.removeprefix(_SHARED), "shared_memory", shm_unlink)
    elif kind == Kind.SEMAPHORE:
        from _multiprocessing import sem_unlink  # type: ignore[import-not-found]

        _unlink("/" + path.removeprefix(_SEMAPHORE), "semaphore", sem_unlink)
    else:
        Path(path).unlink(missing_ok=True)


@contextlib.contextmanager
def without_dead_tracker() -> Generator[None, None, None]:
    """Keeps Python from beginning its resource tracker anew, if someone has killed it.

    It would, with a warning, just to be told that a name is gone.
    """
    tracker: Any = resource_tracker._resource_tracker
    with _hushing:
        lives = getattr(tracker, "_check_alive", None)
        fd = getattr(tracker, "_fd", None)
        hush = lives is not None and fd is not None and not lives()
        if hush:
            _hushed.append(1)
            tracker._send = lambda *_: None
            tracker.ensure_running = lambda: None
    try:
        yield
    finally:
        with _hushing:
            if hush:
                _hushed.pop()
            if not _hushed:  # nobody else is at it, on another thread or further up
                vars(tracker).pop("_send", None)
                vars(tracker).pop("ensure_running", None)


_hushing = threading.RLock()
_hushed: list[int] = []


def _unlink(name: str, tracked_as: str, unlink: Callable[[str], object]) -> None:
    with contextlib.suppress(FileNotFoundError):
        unlink(name)
    # Python's resource tracker, one for the whole tree of processes, would unlink it
    # again and call it leaked. It prints a traceback at a name that it does not know,
    # such as one that C++ has made: so it is told of it first. One with a colon it
    # cannot know: that is what its messages are split at.
    tracker: Any = resource_tracker._resource_tracker
    if getattr(tracker, "_fd", None) is not None and ":" not in name:
        tracker.register(name, tracked_as)
        tracker.unregister(name, tracked_as)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _Note(Struct, frozen=True):
    pid: int
    kind: str
    release: Callable[[], object] | None
    identity: tuple[int, int] | None


def _replaced(note: _Note, path: str) -> bool:
    found = _identity(path)
    return None not in (note.identity, found) and found != note.identity


class FileLedger:
    """Remembers what this process owns by name, so that it can take it away.

    vLLM only makes up names: sockets are bound, and a store is opened, by
    whoever gets the name, and whoever that is may be gone before the library
    underneath gets round to unlinking. So the maker of the name is the owner.

    Attributes:
        on_remember: Called with kind and path of whatever is remembered from now on,
            on the thread that makes it; it must not raise. A forked child inherits it.
            At the top of a tree it writes the list for the next start; elsewhere it
            tells the top.
    """

    def __init__(self) -> None:
        self._owned: dict[str, _Note] = {}
        self._making = threading.local()
        self.on_remember: Callable[[str, str], None] | None = None

    def remember(
        self,
        path: str,
        kind: str = Kind.FILE,
        release: Callable[[], object] | None = None,
    ) -> None:
        """Notes that ``path`` is this process's to remove, at its exit at last.

        If it is there already it is that very file: another one that has come to its
        place until then stays.

        Args:
            path: Of a file, or what :func:`memory_path` and the like give for a name.
            kind: A :class:`Kind`.
            release: What removes it, where the kind's own way will not do. It raises
                ``OSError`` if it cannot.
        """
        if not self._owned:
            atexit.register(self.remove_all)
        self._owned[path] = _Note(os.getpid(), kind, release, _identity(path))
        for made in getattr(self._making, "stack", ()):
            made.append(path)
        if self.on_remember is not None:
            self.on_remember(kind, path)

    def remember_memory(self, memory: SharedMemory) -> None:
        """Notes shared memory that this process has just made.

        Its own ``unlink()``, which whoever uses it calls in a destructor, is ours from
        then on: it comes in time or too late or in a forked child, and the name goes
        once, and by its owner.
        """
        path = memory_path(memory.name)
        self.remember(path, Kind.SHARED_MEMORY)
        memory.unlink = lambda: self.remove([path])  # type: ignore[method-assign]

    def remember_semaphore(self, lock: Any) -> None:
        """Notes the name of a ``multiprocessing`` lock or semaphore, if it has one.

        Under fork it has none by now, and elsewhere only in the process that made it.
        Python unlinks it in an exit hook of its own, which is what is called here too:
        it runs once.
        """
        name = lock._semlock.name
        hooks: dict[Any, Any] = util._finalizer_registry  # type: ignore[attr-defined]
        for hook in list(hooks.values()):
            if hook._args == (name,):
                self.remember(semaphore_path(name), Kind.SEMAPHORE, hook)

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
            note = self._owned.pop(path, None)
            if note is None or note.pid != os.getpid() or _replaced(note, path):
                continue
            try:
                with without_dead_tracker():
                    if note.release is None:
                        release(note.kind, path)
                    else:
                        note.release()
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.warning("[shutdown] %s %s stays: %s", note.kind, path, error)

    def remove_all(self) -> None:
        """Removes everything that this process owns."""
        self.remove(list(self._owned))

    def owned(self) -> list[tuple[str, str]]:
        """Kind and path of everything that this process owns; some may be gone."""
        pid = os.getpid()
        return [
            (note.kind, path)
            for path, note in list(self._owned.items())
            if note.pid == pid
        ]


ledger = FileLedger()
"""That of this process."""
ledger.on_remember = claims.note
