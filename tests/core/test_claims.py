"""A list says what its owner has made; the kernel says whether the owner lives."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from tests.programs import ROOT
from vllm_ashutdown import settings
from vllm_ashutdown.core import reclaim as module
from vllm_ashutdown.core.claims import Claims, identity, is_ours, place
from vllm_ashutdown.core.files import Kind, memory_path
from vllm_ashutdown.core.reclaim import Leftover, Verdict, reclaim

OWNER = """
import os, sys
from vllm_ashutdown.core.files import ledger
for line in sys.stdin:
    words = line.split()
    if words[0] == "make":
        open(words[2], "w").close()
        ledger.remember(words[2], words[1])
    elif words[0] == "name":
        ledger.remember(words[2], words[1])
    elif words[0] == "fork":
        out, into = os.pipe()
        if not os.fork():
            os.close(1)
            os.write(into, b"!")
            os.read(0, 1)  # as long as the test holds the other end
            os._exit(0)
        os.read(out, 1)
    elif words[0] == "leave":
        break
    print("done", flush=True)
"""


class Owner:
    """A process that makes things."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT / "vllm")},
        )

    def does(self, *words: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(*words, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "done\n"

    def leaves(self) -> None:
        self.process.communicate("leave\n", timeout=10)
        assert self.process.returncode == 0

    def dies(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "lists"
    monkeypatch.setenv(settings.STATE_DIRECTORY.name, str(directory))
    return directory


@pytest.fixture
def owner(directory: Path) -> Iterator[Callable[[], Owner]]:
    begun: list[Owner] = []

    def owner() -> Owner:
        begun.append(Owner())
        return begun[-1]

    yield owner
    for one in begun:
        one.dies()
        one.process.communicate()


def verdicts() -> list[tuple[str, str]]:
    found = reclaim(remove=True)
    return [(Path(one.path).name, one.verdict) for one in found.leftovers]


# -- the list ------------------------------------------------------------------


def test_it_is_there_as_long_as_its_owner(owner, directory, tmp_path):
    one = owner()
    one.does("make", "file", tmp_path / "a")
    (path,) = directory.iterdir()
    head, line = map(json.loads, path.read_text().splitlines())
    assert head["pid"] == one.process.pid
    made = str(tmp_path / "a")
    assert line == {"kind": "file", "path": made, "is": identity(made)}
    assert path.stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700
    one.leaves()
    assert not directory.exists()
    assert not Path(made).exists()


def test_who_makes_nothing_has_none(owner, directory):
    owner().leaves()
    assert not directory.exists()


def test_two_have_one_each_and_the_last_takes_the_directory(owner, directory, tmp_path):
    first, second = owner(), owner()
    first.does("make", "file", tmp_path / "a")
    second.does("make", "file", tmp_path / "b")
    assert len(list(directory.iterdir())) == 2
    first.leaves()
    assert len(list(directory.iterdir())) == 1
    second.leaves()
    assert not directory.exists()


def test_what_is_still_there_keeps_its_list(directory, tmp_path):
    claims = Claims()
    kept = tmp_path / "kept"
    kept.touch()
    claims.note("file", str(kept))
    claims.withdraw()
    assert verdicts() == [("kept", "removed")]


def test_a_list_of_nothing_ends_and_the_next_thing_begins_another(directory, tmp_path):
    claims = Claims()
    made = tmp_path / "made"
    for _ in range(2):
        made.touch()
        claims.note("file", str(made))
        claims.settle([str(made)])
        assert len(list(directory.iterdir())) == 1, "something is left of it"
        made.unlink()
        claims.settle([str(made)])
        assert not directory.exists()
    claims.settle([])


def test_a_list_goes_on_for_what_is_only_about_to_be_made(directory, tmp_path):
    claims = Claims()
    later = tmp_path / "later"
    claims.note("file", str(tmp_path / "gone"))
    claims.note("file", str(later))  # by somebody else, who has not come to it
    claims.settle([str(tmp_path / "gone")])
    later.touch()
    claims.withdraw()  # as a kill would leave it
    assert verdicts() == [("later", "removed")]


@pytest.mark.parametrize("obstacle", ["a file", "open to all", "a link"])
def test_where_it_cannot_be_written_one_warning_says_so(
    directory, tmp_path, log, obstacle
):
    if obstacle == "a file":
        directory.touch()
    elif obstacle == "a link":
        (tmp_path / "elsewhere").mkdir()
        directory.symlink_to(tmp_path / "elsewhere")
    else:
        directory.mkdir()
        directory.chmod(0o777)
    claims = Claims()
    for name in ("a", "b"):
        claims.note("file", str(tmp_path / name))
    (line,) = [one.getMessage() for one in log.records]
    assert str(directory) in line
    assert settings.STATE_DIRECTORY.name in line
    assert not is_ours(directory)
    assert reclaim(remove=True).leftovers == ()


def test_without_a_setting_it_is_in_the_temporary_directory(monkeypatch):
    monkeypatch.delenv(settings.STATE_DIRECTORY.name, raising=False)
    assert place().name == f"vllm-ashutdown-{os.getuid()}"


# -- of the dead and of the living ---------------------------------------------


def test_what_the_dead_have_left_goes_and_once(owner, directory, tmp_path):
    one = owner()
    for kind in ("file", "store"):
        one.does("make", kind, tmp_path / kind)
    one.dies()
    shown = reclaim(remove=False)
    assert [leftover.verdict for leftover in shown.leftovers] == [Verdict.FOUND] * 2
    assert f"pid {one.process.pid}" in shown.leftovers[0].owner
    assert verdicts() == [("file", "removed"), ("store", "removed")]
    assert not (tmp_path / "file").exists()
    assert not directory.exists()
    assert reclaim(remove=True).leftovers == ()


def test_of_the_living_nothing_is_touched(owner, tmp_path):
    dead, living = owner(), owner()
    dead.does("make", "file", tmp_path / "a")
    living.does("make", "file", tmp_path / "b")
    dead.dies()
    found = reclaim(remove=True)
    assert [Path(one.path).name for one in found.leftovers] == ["a"]
    assert len(found.alive) == 1
    assert found.alive[0].startswith(f"{living.process.pid}-")
    assert (tmp_path / "b").exists()


def test_a_process_that_its_owner_has_forked_is_not_the_owner(owner, tmp_path):
    one = owner()
    one.does("make", "file", tmp_path / "a")
    one.does("fork")
    one.dies()
    assert verdicts() == [("a", "removed")]


def test_a_pid_that_someone_else_has_now_is_no_owner(owner, directory, tmp_path):
    one = owner()
    one.does("make", "file", tmp_path / "a")
    one.dies()
    (path,) = directory.iterdir()
    ours = path.read_text().replace(str(one.process.pid), str(os.getpid()))
    path.write_text(ours)
    path.rename(path.with_name(f"{os.getpid()}-00{path.suffix}"))
    assert verdicts() == [("a", "removed")]


def test_another_file_in_its_place_stays(owner, directory, tmp_path):
    one = owner()
    one.does("make", "file", tmp_path / "a")
    one.dies()
    (tmp_path / "b").touch()
    (tmp_path / "b").rename(tmp_path / "a")
    assert reclaim(remove=False).leftovers == ()
    assert reclaim(remove=True).leftovers == ()
    assert (tmp_path / "a").exists()
    assert not directory.exists()  # what it lists is gone


@pytest.mark.parametrize("alive", [True, False])
def test_a_socket_that_answers_stays(owner, tmp_path, alive):
    one = owner()
    one.does("name", Kind.IPC_SOCKET.replace(" ", "_"), tmp_path / "a")
    one.does("name", "file", tmp_path / "b")
    one.dies()
    lists = list((tmp_path / "lists").iterdir())
    text = lists[0].read_text().replace("ipc_socket", "ipc socket")
    lists[0].write_text(text)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "a"))
    listener.listen()
    if not alive:
        listener.close()
    assert verdicts() == [("a", "refused" if alive else "removed")]
    listener.close()


@pytest.mark.parametrize("mapped", [True, False])
def test_shared_memory_that_someone_has_mapped_stays(directory, request, mapped):
    memory = SharedMemory(create=True, size=4096)
    request.addfinalizer(lambda: Path(memory_path(memory.name)).unlink(missing_ok=True))
    claims = Claims()
    claims.note("shared memory", memory_path(memory.name))
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    # It has inherited the mapping.
    holder = context.Process(target=lambda: (there.send(None), there.recv()))
    if mapped:
        holder.start()
        here.recv()
    claims.withdraw()
    memory.close()
    found = reclaim(remove=True).leftovers
    if mapped:
        assert [one.verdict for one in found] == [Verdict.REFUSED]
        assert str(holder.pid) in found[0].reason
        here.send(None)
        holder.join()
        found = reclaim(remove=True).leftovers
    assert [one.verdict for one in found] == [Verdict.REMOVED]
    assert not Path(memory_path(memory.name)).exists()


def test_a_list_that_was_cut_in_the_middle_of_a_line(owner, directory, tmp_path):
    one = owner()
    one.does("make", "file", tmp_path / "a")
    one.dies()
    (path,) = directory.iterdir()
    path.write_text(path.read_text() + '{"kind": "fi')
    assert verdicts() == [("a", "removed")]


def test_a_kind_of_a_later_version_stays(owner, tmp_path):
    one = owner()
    one.does("make", "quantum", tmp_path / "a")
    one.dies()
    assert verdicts() == [("a", "refused")]


def test_two_that_reclaim_at_once_do_not_disturb_one_another(
    owner, directory, tmp_path, monkeypatch
):
    one = owner()
    one.does("make", "file", tmp_path / "a")
    one.dies()
    release, others = module.release, []

    def meanwhile(kind: str, path: str) -> None:
        others.append(reclaim(remove=True))
        release(kind, path)

    monkeypatch.setattr(module, "release", meanwhile)
    assert verdicts() == [("a", "removed")]
    (other,) = others
    assert other.leftovers == ()
    assert len(other.alive) == 1, "it is held by the first"


def test_a_list_that_is_taken_for_a_dead_ones_before_it_is_locked_is_begun_anew(
    directory, tmp_path, monkeypatch
):
    claims, lock = Claims(), fcntl.flock

    def once(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        assert reclaim(remove=True).leftovers == ()  # it is empty, and held by nobody
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", once)
    claims.note("file", str(tmp_path / "a"))
    (path,) = directory.iterdir()
    assert str(tmp_path / "a") in path.read_text()
    assert len(reclaim(remove=True).alive) == 1
    claims.withdraw()


def test_the_list_of_another_host_is_let_alone(owner, directory, tmp_path):
    one = owner()
    one.does("make", "file", tmp_path / "a")
    one.dies()
    (path,) = directory.iterdir()
    here = path.read_text()
    path.write_text(here.replace(json.dumps(platform.node()), '"elsewhere"'))
    found = reclaim(remove=True)
    assert (found.leftovers, len(found.alive)) == ((), 1)
    path.write_text(here)
    assert verdicts() == [("a", "removed")]


def test_what_cannot_be_removed_is_refused_with_the_reason(
    owner, tmp_path, monkeypatch
):
    one = owner()
    one.does("make", "file", tmp_path / "a")
    one.dies()

    def release(kind: str, path: str) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr(module, "release", release)
    (leftover,) = reclaim(remove=True).leftovers
    assert leftover.verdict is Verdict.REFUSED
    assert str(leftover).endswith("a refused: read-only file system")


def test_a_leftover_reads_as_a_line():
    one = Leftover("vllm serve (pid 3)", "store", "/tmp/a", Verdict.REMOVED)
    assert str(one) == "store /tmp/a removed"
