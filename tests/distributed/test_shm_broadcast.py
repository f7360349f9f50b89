"""A queue's memory has a name for as long as somebody needs it, and no longer."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from pathlib import Path

import pytest
from vllm.distributed.device_communicators.shm_broadcast import (
    MessageQueue,
    ShmRingBuffer,
)

from tests.programs import run
from vllm_ashutdown.core.files import Kind, ledger, memory_path

SMALL = {"max_chunk_bytes": 1024, "max_chunks": 4}

TWO_ENDS = """
import threading
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

writer = MessageQueue(1, 1, max_chunk_bytes=1024, max_chunks=4)
tell(memory_path(writer.buffer.shared_memory.name))

def readers_end():
    reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
    reader.wait_until_ready()
    return reader
"""
"""The name is the first line."""

READY = """
kept = []
thread = threading.Thread(target=lambda: kept.append(readers_end()))
thread.start()
writer.wait_until_ready()
thread.join()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Where ZMQ's sockets lie; short, since their paths have a limit."""
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", os.path.relpath(tmp_path))


def names() -> list[str]:
    return [path for kind, path in ledger.owned() if kind == Kind.SHARED_MEMORY]


def test_a_ring_buffer_is_its_makers_until_it_is_collected():
    before = names()
    buffer = ShmRingBuffer(1, 1024, 4)
    path = memory_path(buffer.shared_memory.name)
    reader = ShmRingBuffer(*buffer.handle())
    assert [name for name in names() if name not in before] == [path]
    del reader
    gc.collect()
    assert Path(path).exists(), "a reader owns nothing"
    del buffer
    gc.collect()
    assert path not in names()
    assert not Path(path).exists()


def test_the_name_goes_once_every_reader_has_the_memory():
    writer = MessageQueue(2, 2, **SMALL)
    handle = writer.export_handle()
    path = Path(memory_path(writer.buffer.shared_memory.name))
    attached, go = threading.Semaphore(0), threading.Event()
    heard = []

    def read(rank: int) -> None:
        if rank == 1:
            assert go.wait(30)
        reader = MessageQueue.create_from_handle(handle, rank)
        attached.release()
        reader.wait_until_ready()
        heard.append(reader.dequeue(timeout=30))

    ready = threading.Thread(target=writer.wait_until_ready)
    readers = [threading.Thread(target=read, args=(rank,)) for rank in (0, 1)]
    for thread in (ready, *readers):
        thread.start()
    assert attached.acquire(timeout=30)
    assert path.exists(), "the other one has not come yet"
    go.set()
    ready.join(30)
    assert not path.exists()
    writer.enqueue("over the memory", timeout=30)
    for thread in readers:
        thread.join(30)
    assert heard == ["over the memory", "over the memory"]
    del writer
    gc.collect()  # its destructor unlinks: a warning here is an error


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"])
def test_no_way_to_end_leaves_the_name_of_a_queue_that_is_ready(end):
    _, lines, complaints = run(f"{TWO_ENDS}{READY}{end}")
    assert complaints == ""
    assert not Path(lines[0]).exists()


def test_without_the_plugin_it_is_called_leaked():
    _, lines, complaints = run(f"{TWO_ENDS}{READY}os._exit(0)", plugin=False)
    assert "leaked shared_memory" in complaints
    Path(lines[0]).unlink(missing_ok=True)


def test_the_fast_exit_takes_the_name_of_one_that_nobody_has_read():
    code, lines, complaints = run(f"{TWO_ENDS}fast_exit(0)")
    assert (code, complaints) == (0, "")
    assert not Path(lines[0]).exists()


class Wake:
    """The reader's way to be woken; notes whether two threads were in it at once."""

    def __init__(self) -> None:
        self.calls = 0
        self.met = False
        self._inside = threading.Lock()
        self._both = threading.Barrier(2)

    def cancel(self) -> None:
        self.calls += 1
        self.met |= not self._inside.acquire(blocking=False)
        with contextlib.suppress(threading.BrokenBarrierError):
            self._both.wait(0.2)  # for the other one, which must not come
        if not self.met:
            self._inside.release()


def test_two_threads_never_wake_a_reader_at_once():
    queue = MessageQueue.__new__(MessageQueue)
    queue._spin_condition = wake = Wake()
    threads = [threading.Thread(target=queue.shutdown) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queue.shutting_down
    assert wake.calls == 2, "each may find the reader in a wait of its own"
    assert not wake.met
