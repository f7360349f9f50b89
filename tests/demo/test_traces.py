from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import uuid
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from vllm_ashutdown.demo.server import free_port
from vllm_ashutdown.demo.traces import SHARED_MEMORY, Traces, members

needs_shm = pytest.mark.skipif(
    not (SHARED_MEMORY.is_dir() and Path("/proc/self/maps").exists()),
    reason="Linux only",
)


def a_session(code: str) -> int:
    """Runs Python code in a session of its own until it ends; gives the session."""
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    assert process.wait(30) == 0
    return process.pid


def test_nothing_left(tmp_path):
    traces = Traces()
    left = traces.left(a_session("pass"), free_port(), tmp_path)
    assert (left.processes, left.sockets, left.files, left.port) == ((), (), (), "")


@needs_shm
def test_shared_memory_without_an_owner_is_found(tmp_path):
    entry = SHARED_MEMORY / f"test-{uuid.uuid4().hex}"
    traces = Traces()
    session = a_session(f"open({str(entry)!r}, 'w').close()")
    try:
        left = traces.left(session, free_port(), tmp_path)
        assert entry.name in left.shared_memory
    finally:
        entry.unlink()


@needs_shm
def test_what_another_program_uses_is_not_counted(tmp_path):
    traces = Traces()
    segment = SharedMemory(create=True, size=4096)
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    try:
        left = traces.left(a_session("pass"), free_port(), tmp_path)
        mine = {segment.name, "sem." + semaphore._semlock.name.lstrip("/")}
        assert not mine & set(left.shared_memory)
    finally:
        segment.close()
        segment.unlink()


def test_a_process_that_stays_is_found(tmp_path):
    code = (
        "import subprocess, sys; "
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    )
    session = a_session(code)
    try:
        left = Traces().left(session, free_port(), tmp_path)
        assert len(left.processes) == 1
    finally:
        for process in members(session):
            os.kill(process.pid, signal.SIGKILL)


def test_sockets_and_files_are_told_apart_and_caches_may_stay(tmp_path):
    (tmp_path / "torchinductor_me").mkdir()
    (tmp_path / "torchinductor_me" / "compiled").touch()
    (tmp_path / "vllm_dist").touch()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "ipc"))
    left = Traces().left(a_session("pass"), free_port(), tmp_path)
    assert left.sockets == ("ipc",)
    assert left.files == ("vllm_dist",)


def test_a_port_in_use_is_found(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        left = Traces().left(a_session("pass"), port, tmp_path)
    assert left.port == "still answers"
