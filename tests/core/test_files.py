from __future__ import annotations

import contextlib
import os
import threading

import pytest

from vllm_ashutdown.core import files
from vllm_ashutdown.core.files import FileLedger


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
    assert ledger.existing([ours, other, kept]) == [other, kept]


def test_what_is_removed_is_forgotten(ledger, make):
    path = make("socket")
    ledger.remember(path)
    ledger.remove([path])
    make("socket")  # someone else's, under the same name
    ledger.remove([path])
    ledger.remove_all()
    assert ledger.existing([path]) == [path]


def test_a_file_that_is_gone_or_was_never_made_is_no_error(ledger, make, tmp_path):
    ledger.remember(str(tmp_path / "never"))
    path = make("there")
    ledger.remember(path)
    ledger.remove_all()
    assert ledger.existing([path]) == []


def test_a_name_without_a_target_is_a_file_too(ledger, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    ledger.remember(str(link))
    assert ledger.existing([str(link)]) == [str(link)]
    ledger.remove_all()
    assert ledger.existing([str(link)]) == []


def test_one_that_cannot_be_removed_does_not_keep_the_others(ledger, make, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = make("file")
    ledger.remember(str(folder))
    ledger.remember(path)
    with contextlib.suppress(OSError):  # loud or not is another question
        ledger.remove_all()
    assert ledger.existing([path]) == []


def test_the_exit_removes_what_is_left(ledger, at_exit, make):
    assert not at_exit, "a process that makes no files has nothing to do at its exit"
    first, second = make("first"), make("second")
    ledger.remember(first)
    ledger.remember(second)
    assert len(at_exit) == 1
    at_exit[0]()
    assert ledger.existing([first, second]) == []


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
    assert ledger.existing([parents, childs]) == [parents]
    ledger.remove_all()
    assert ledger.existing([parents]) == []


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
    assert ledger.existing([path]) == []
