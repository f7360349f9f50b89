"""What dead instances have left is taken away; what could be someone's stays."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import os
import platform
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from .claims import SUFFIX, identity, is_ours, place
from .files import Kind, release

PROC = Path("/proc")

_SOCKETS = (Kind.IPC_SOCKET, Kind.SOCKET_FILE)


class Verdict(enum.StrEnum):
    """What became of one thing that was left."""

    FOUND = "found"
    """It would be removed; nobody has asked for that."""
    REMOVED = "removed"
    REFUSED = "refused"


class Leftover(Struct, frozen=True):
    """One thing that a dead instance has left.

    Attributes:
        owner: Who made it, for people.
        kind: What it is.
        path: Where.
        verdict: What became of it.
        reason: Why it was refused.
    """

    owner: str
    kind: str
    path: str
    verdict: Verdict
    reason: str = ""

    def __str__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return f"{self.kind} {self.path} {self.verdict}{why}"


class Reclaimed(Struct, frozen=True):
    """What one look has found.

    Attributes:
        leftovers: Of dead owners.
        alive: Instances whose owner lives, which were not touched.
    """

    leftovers: tuple[Leftover, ...]
    alive: tuple[str, ...]

    def count(self, verdict: Verdict) -> int:
        """How many ended so."""
        return sum(one.verdict is verdict for one in self.leftovers)


def reclaim(*, remove: bool, directory: Path | None = None) -> Reclaimed:
    """Looks for what dead instances of this user have left.

    Two may look at the same time: each list is held by one of them.

    Args:
        remove: Whether to take it away, or only to tell.
        directory: Where the lists are.
    """
    where = directory or place()
    leftovers: list[Leftover] = []
    alive: list[str] = []
    if not is_ours(where):
        return Reclaimed((), ())
    for path in sorted(where.glob(f"*{SUFFIX}")):
        with _held(path) as lines:
            if lines is None:
                alive.append(path.stem)
                continue
            head: dict[str, Any] = next((one for one in lines if "pid" in one), {})
            if head.get("host", platform.node()) != platform.node():
                alive.append(path.stem)  # on another host, where its lock may be held
                continue
            found = list(_of_one(head, lines, remove=remove))
            leftovers += found
            if remove and all(one.verdict is Verdict.REMOVED for one in found):
                path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        if remove:
            where.rmdir()
    return Reclaimed(tuple(leftovers), tuple(alive))


@contextlib.contextmanager
def _held(path: Path) -> Iterator[list[Any] | None]:
    """The lines of a list whose owner is dead, held; ``None`` if someone else holds it.

    A list that goes while it is opened has been dealt with.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        yield []
        return
    except OSError:
        yield None
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
            return
        if os.fstat(file.fileno()).st_nlink == 0:
            yield []
            return
        lines = []
        for line in file:
            with contextlib.suppress(ValueError):  # cut off in the middle by the kill
                lines.append(json.loads(line))
        yield lines


def _of_one(
    head: dict[str, Any], lines: list[Any], *, remove: bool
) -> Iterator[Leftover]:
    command = " ".join(str(word) for word in head.get("command", ["vLLM"]))
    owner = f"{command} (pid {head.get('pid')})"
    made = {line["path"]: line for line in lines if "path" in line}
    for path, line in made.items():
        if not _is_still(path, line.get("is")):
            continue
        kind = str(line.get("kind"))
        reason = _why_not(kind, path)
        verdict = Verdict.REFUSED if reason else Verdict.FOUND
        if remove and not reason:
            verdict = Verdict.REMOVED
            try:
                release(kind, path)
            except OSError as error:
                verdict, reason = Verdict.REFUSED, str(error)
        yield Leftover(owner, kind, path, verdict, reason)


def _is_still(path: str, known: Any) -> bool:
    """Whether what the dead one made is there: another file in its place is not."""
    if known is None:
        return os.path.lexists(path)
    return list(known) == identity(path)


def _why_not(kind: str, path: str) -> str:
    """Why what is at ``path`` must stay; empty if it is the dead owner's, and dead."""
    if kind not in list(Kind):
        return "of a kind that this version does not know"
    try:
        found = os.lstat(path)
    except OSError as error:
        return str(error)
    if found.st_uid != os.getuid():
        return "it belongs to another user"
    if kind in _SOCKETS:
        if not stat.S_ISSOCK(found.st_mode):
            return "it is no socket"
        return "someone listens there" if _answers(path) else ""
    holder = _holder(path)
    return f"process {holder} has it open" if holder else ""


def _answers(path: str) -> bool:
    """Whether a process listens on the UNIX socket at ``path``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
        knock.settimeout(1)
        try:
            knock.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # it is there in some way; rather too careful
    return True


def _holder(path: str) -> int | None:
    """A process that maps ``path``, or something below it, or has it open."""
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if path.encode() in (entry / "maps").read_bytes():
                return int(entry.name)
            for link in (entry / "fd").iterdir():
                target = os.readlink(link)  # noqa: PTH115
                if target == path or target.startswith(f"{path}/"):
                    return int(entry.name)
        except OSError:  # it has gone, or is another user's
            continue
    return None
