"""Named semaphores of vLLM's own context have an owner; the program's have not."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from vllm.utils.system_utils import get_mp_context

from tests.programs import run
from vllm_ashutdown.core.files import ledger, semaphore_path


@pytest.fixture(autouse=True)
def spawn(monkeypatch):
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")


def named(*locks: object) -> set[tuple[str, str]]:
    return {
        ("semaphore", semaphore_path(lock._semlock.name))  # type: ignore[attr-defined]
        for lock in locks
    }


def test_what_vllms_context_makes_is_owned():
    context = get_mp_context()
    lock, queue = context.Lock(), context.Queue()
    condition = context.Condition()
    made = named(lock, queue._rlock, queue._wlock, queue._sem, condition._lock)
    assert made <= set(ledger.owned())
    ledger.remove(path for _, path in made)
    assert not any(Path(path).exists() for _, path in made)
    queue.close()
    queue.join_thread()


def test_what_the_program_makes_is_its_own():
    get_mp_context()
    lock = multiprocessing.get_context("spawn").Lock()
    assert not named(lock) & set(ledger.owned())


def test_it_is_a_context_like_any_other():
    context = get_mp_context()
    assert context.get_start_method() == "spawn"
    assert isinstance(context, type(multiprocessing.get_context("spawn")))
    lock = context.Lock()
    lock.acquire()
    process = context.Process(target=lock.__exit__, args=(None, None, None))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert lock.acquire(timeout=1), "the child had it by its name"


def test_forked_children_need_no_names(monkeypatch):
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    before = ledger.owned()
    get_mp_context().Lock()
    assert ledger.owned() == before


def test_the_fast_exit_leaves_no_word_of_it():
    code, lines, complaints = run("""
        from vllm.utils.system_utils import get_mp_context
        lock = get_mp_context().Lock()
        tell("/dev/shm/sem." + lock._semlock.name.lstrip("/"))
        fast_exit(0)
    """)
    assert (code, complaints) == (0, "")
    assert not Path(lines[0]).exists()


def test_a_parent_releases_what_a_dead_child_told_it_of():
    code, lines, complaints = run("""
        from vllm_ashutdown.core.files import release
        from vllm.utils.system_utils import get_mp_context
        context = get_mp_context()
        context.Lock()  # so that the tracker of both runs
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            ledger.on_remember = lambda *made: os.write(writer, "|".join(made).encode())
            lock = context.Lock()
            os.kill(os.getpid(), signal.SIGKILL)
        os.close(writer)
        os.waitpid(pid, 0)
        kind, path = os.read(reader, 1000).decode().split("|")
        tell(kind, os.path.exists(path))
        release(kind, path)
        tell(os.path.exists(path))
    """)
    assert (code, complaints) == (0, "")
    assert lines == ["semaphore True", "False"]
