from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
from multiprocessing import util
from multiprocessing.shared_memory import SharedMemory

import pytest

from tests.programs import ROOT
from vllm_ashutdown.core import files
from vllm_ashutdown.core.files import (
    FileLedger,
    Kind,
    memory_path,
    release,
    semaphore_path,
)


def existing(paths: list[str]) -> list[str]:
    return [path for path in paths if os.path.lexists(path)]


@pytest.fixture
def at_exit(monkeypatch):
    """What a ledger leaves to the interpreter's exit."""
    calls = []
    monkeypatch.setattr(files.atexit, "register", calls.append)
    return calls


@pytest.fixture
def ledger(at_exit):
    return FileLedger()


@pytest.fixture
def make(tmp_path):
    def make(name: str) -> str:
        path = tmp_path / name
        path.touch()
        return str(path)

    return make


def test_only_what_it_owns_is_removed(ledger, make):
    ours, other, kept = make("ours"), make("other"), make("kept")
    ledger.remember(ours)
    ledger.remember(kept)
    ledger.remove([ours, other])
    assert existing([ours, other, kept]) == [other, kept]


def test_what_is_removed_is_forgotten(ledger, make):
    path = make("socket")
    ledger.remember(path)
    ledger.remove([path])
    make("socket")  # someone else's, under the same name
    ledger.remove([path])
    ledger.remove_all()
    assert existing([path]) == [path]


def test_a_file_that_is_gone_or_was_never_made_is_no_error(ledger, make, tmp_path):
    ledger.remember(str(tmp_path / "never"))
    path = make("there")
    ledger.remember(path)
    ledger.remove_all()
    assert existing([path]) == []


def test_a_name_without_a_target_is_a_file_too(ledger, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    ledger.remember(str(link))
    assert existing([str(link)]) == [str(link)]
    ledger.remove_all()
    assert existing([str(link)]) == []


def test_one_that_cannot_be_removed_does_not_keep_the_others(ledger, make, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = make("file")
    ledger.remember(str(folder))
    ledger.remember(path)
    with contextlib.suppress(OSError):  # loud or not is another question
        ledger.remove_all()
    assert existing([path]) == []


def test_the_exit_removes_what_is_left(ledger, at_exit, make):
    assert not at_exit, "a process that makes no files has nothing to do at its exit"
    first, second = make("first"), make("second")
    ledger.remember(first)
    ledger.remember(second)
    assert len(at_exit) == 1
    at_exit[0]()
    assert existing([first, second]) == []


@pytest.mark.filterwarnings(r"ignore:.*use of fork\(\):DeprecationWarning")
def test_a_forked_child_removes_its_own_and_nothing_of_its_parents(ledger, make):
    parents = make("parents")
    ledger.remember(parents)
    childs = make("childs")
    pid = os.fork()
    if pid == 0:  # no assertion here: a failure would run on as a second pytest
        code = 1
        try:
            ledger.remove([parents])
            ledger.remember(childs)
            ledger.remove_all()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert existing([parents, childs]) == [parents]
    ledger.remove_all()
    assert existing([parents]) == []


def test_a_block_collects_what_is_made_in_it(ledger):
    ledger.remember("before")
    with ledger.making() as made:
        ledger.remember("inside")
    ledger.remember("after")
    assert made == ["inside"]


def test_a_block_that_raises_keeps_what_was_made_and_collects_no_more(ledger):
    collected = []

    def fail():
        with ledger.making() as made:
            collected.append(made)
            ledger.remember("inside")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    ledger.remember("after")
    assert collected == [["inside"]]


def test_a_block_in_a_block_collects_for_both(ledger):
    with ledger.making() as outer:
        with ledger.making() as inner:
            ledger.remember("inner")
        ledger.remember("outer")
    assert (outer, inner) == (["inner", "outer"], ["inner"])


def test_a_block_in_a_block_takes_nothing_along_when_it_ends(ledger):
    with ledger.making() as outer:
        with ledger.making() as inner:
            pass  # both are alike now, and yet only one of them is over
        ledger.remember("outer")
    assert (outer, inner) == (["outer"], [])


def test_each_thread_collects_its_own(ledger):
    entered, made_elsewhere = threading.Barrier(2, timeout=10), []

    def elsewhere() -> None:
        with ledger.making() as made:
            entered.wait()
            ledger.remember("elsewhere")
            entered.wait()
            made_elsewhere.extend(made)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    with ledger.making() as made_here:
        entered.wait()
        ledger.remember("here")
        entered.wait()
    thread.join(10)
    assert (made_here, made_elsewhere) == (["here"], ["elsewhere"])


def test_what_another_thread_made_is_this_processs_to_remove(ledger, make):
    path = make("file")
    thread = threading.Thread(target=ledger.remember, args=(path,))
    thread.start()
    thread.join(10)
    ledger.remove_all()
    assert existing([path]) == []


# -- kinds -------------------------------------------------------------------------


def test_it_tells_what_it_owns_and_of_which_kind(ledger):
    ledger.remember("plain")
    ledger.remember("socket", Kind.IPC_SOCKET)
    ledger.remember("store", kind="store")
    assert ledger.owned() == [
        ("file", "plain"),
        ("ipc socket", "socket"),
        ("store", "store"),
    ]
    ledger.remove(["socket", "store"])
    assert ledger.owned() == [("file", "plain")]


def test_a_listener_is_told_of_what_is_remembered_from_then_on(ledger):
    told = []
    ledger.remember("before")
    ledger.on_remember = lambda kind, path: told.append((kind, path))
    ledger.remember("plain")
    ledger.remember("memory", Kind.SHARED_MEMORY)
    assert told == [("file", "plain"), ("shared memory", "memory")]


def test_a_directory_goes_with_all_that_is_in_it_and_only_as_one(ledger, tmp_path):
    ours, other = tmp_path / "ours", tmp_path / "other"
    for folder in (ours, other):
        (folder / "below").mkdir(parents=True)
        (folder / "below" / "file").touch()
    ledger.remember(str(ours), Kind.DIRECTORY)
    ledger.remember(str(other))  # a plain name never takes a tree along
    ledger.remove_all()
    assert (ours.exists(), (other / "below" / "file").exists()) == (False, True)


def test_a_directory_that_stays_is_told(ledger, tmp_path, log, monkeypatch):
    monkeypatch.setattr(files.shutil, "rmtree", lambda *args, **kwargs: None)
    ledger.remember(str(tmp_path), Kind.DIRECTORY)
    ledger.remove_all()
    assert f"directory {tmp_path} stays" in log.text


def test_what_has_come_to_its_place_since_is_not_removed(ledger, make, tmp_path):
    path = make("socket")
    ledger.remember(path)
    (tmp_path / "held").hardlink_to(path)  # so that its inode is not given away
    (tmp_path / "socket").unlink()
    make("socket")  # another server's
    ledger.remove([path])
    assert existing([path]) == [path]


def test_a_way_of_its_own_to_be_released_is_gone_once(ledger, log):
    calls = []
    ledger.remember("one", release=lambda: calls.append("one"))

    def fails():
        raise OSError("no")

    ledger.remember("two", release=fails)
    ledger.remove_all()
    ledger.remove_all()
    assert calls == ["one"]
    assert "two stays: no" in log.text


# -- shared memory and semaphores --------------------------------------------------


def test_shared_memory_goes_by_its_name_and_stays_mapped(ledger):
    memory = SharedMemory(create=True, size=8)
    path = memory_path(memory.name)
    ledger.remember_memory(memory)
    assert ledger.owned() == [("shared memory", path)]
    assert existing([path]) == [path]
    ledger.remove([path])
    assert existing([path]) == []
    memory.buf[0] = 7
    assert memory.buf[0] == 7
    memory.unlink()  # as vLLM's destructor does: late, and no error
    memory.close()


def test_its_users_own_unlink_is_the_ledgers(ledger):
    memory = SharedMemory(create=True, size=8)
    ledger.remember_memory(memory)
    memory.close()
    memory.unlink()
    assert ledger.owned() == []
    assert existing([memory_path(memory.name)]) == []


@pytest.mark.filterwarnings(r"ignore:.*use of fork\(\):DeprecationWarning")
def test_a_forked_child_does_not_unlink_its_parents_memory(ledger):
    memory = SharedMemory(create=True, size=8)
    ledger.remember_memory(memory)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            memory.unlink()
            code = len(ledger.owned())
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    path = memory_path(memory.name)
    assert existing([path]) == [path]
    memory.unlink()
    memory.close()


def test_a_named_semaphore_goes_and_its_exit_hook_with_it(ledger):
    lock = multiprocessing.get_context("spawn").Lock()
    path = semaphore_path(lock._semlock.name)
    ledger.remember_semaphore(lock)
    assert ledger.owned() == [("semaphore", path)]
    assert existing([path]) == [path]
    ledger.remove_all()
    assert existing([path]) == []
    hooks = [hook._args for hook in util._finalizer_registry.values()]
    assert (lock._semlock.name,) not in hooks
    with lock:  # who has it open keeps it
        pass


def test_a_semaphore_that_is_collected_first_is_no_error(ledger, log):
    lock = multiprocessing.get_context("spawn").Lock()
    path = semaphore_path(lock._semlock.name)
    ledger.remember_semaphore(lock)
    del lock
    gc.collect()
    assert existing([path]) == []
    ledger.remove_all()
    assert log.text == ""


def test_a_semaphore_without_a_name_is_nobodys(ledger):
    ledger.remember_semaphore(multiprocessing.get_context("fork").Lock())
    assert ledger.owned() == []


TRACKED = """
    import multiprocessing, os, sys
    from multiprocessing import resource_tracker
    from multiprocessing.shared_memory import SharedMemory
    from vllm_ashutdown.core.files import ledger, memory_path, release, semaphore_path

    {}
    os._exit(0)  # no exit hook and no destructor
"""

MEMORY = "memory = SharedMemory(create=True, size=8)"
LOCK = "lock = multiprocessing.get_context('spawn').Lock()"

ENDS = {
    "memory": f"{MEMORY}; ledger.remember_memory(memory); ledger.remove_all()",
    "lock": f"{LOCK}; ledger.remember_semaphore(lock); ledger.remove_all()",
    # As a parent does for a child that is dead.
    "by name": f"{MEMORY}; release('shared memory', memory_path(memory.name))",
    "lock by name": f"{LOCK}; release('semaphore', semaphore_path(lock._semlock.name))",
    # As C++ makes it, with the tracker running for something else.
    "untracked": f"{MEMORY}; resource_tracker.unregister('/' + memory.name, "
    "'shared_memory'); ledger.remember(memory_path(memory.name), 'shared memory'); "
    "ledger.remove_all()",
    "untracked, with a colon": f"{MEMORY}; "
    "ledger.remember(memory_path('tp:0_0'), 'shared memory'); "
    "memory.unlink(); ledger.remove_all()",
    # It was unlinked by its name alone, by somebody else.
    "gone": f"{MEMORY}; ledger.remember_memory(memory); "
    "os.unlink(memory_path(memory.name)); ledger.remove_all()",
}


def end(program: str) -> str:
    """What Python's resource tracker says behind a process that leaves at once."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TRACKED).format(program)],
        capture_output=True,  # until the tracker, which outlives it, has closed it
        text=True,
        timeout=60,
        check=True,
    )
    return done.stderr


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS)
def test_the_resource_tracker_has_nothing_to_say(program):
    assert end(program) == ""


@pytest.mark.parametrize("program", [MEMORY, LOCK])
def test_without_the_ledger_it_has(program):
    assert "leaked" in end(program)


@pytest.mark.parametrize("kind", [*Kind])
def test_to_release_what_is_gone_is_no_error(kind, tmp_path):
    release(kind, str(tmp_path / "never"))
    release(kind, memory_path("vllm-ashutdown-never"))
    release(kind, semaphore_path("vllm-ashutdown-never"))


DEAD_TRACKER = """
import multiprocessing, os, signal, warnings
from multiprocessing import resource_tracker
from vllm_ashutdown.core.files import ledger, without_dead_tracker

warnings.simplefilter("always")
lock = multiprocessing.get_context("spawn").Lock()
ledger.remember_semaphore(lock)
tracker = resource_tracker._resource_tracker
if {killed}:
    os.kill(tracker._pid, signal.SIGKILL)
    os.waitpid(tracker._pid, 0)
with without_dead_tracker():
    ledger.remove_all()
    with without_dead_tracker():
        pass
    if {killed}:  # what an exit hook does that is not ours
        resource_tracker.unregister("/nobodys", "semaphore")
send = tracker._send
print(tracker._check_alive(), getattr(send, "__self__", None) is tracker)
if {killed}:
    tracker._fd = tracker._pid = None  # nobody is there to be waited for
"""


@pytest.mark.parametrize("killed", [True, False])
def test_a_tracker_that_was_killed_is_not_begun_anew_for_a_name_that_goes(killed):
    done = subprocess.run(
        [sys.executable, "-c", DEAD_TRACKER.format(killed=killed)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "vllm")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"{not killed} True\n", "")
