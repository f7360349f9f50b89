"""Whose a thing is: the server's, and not that of who works beside it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest

from vllm_ashutdown.audit.address import Address
from vllm_ashutdown.audit.family import MARK, Family
from vllm_ashutdown.audit.server import free_port
from vllm_ashutdown.audit.traces import SHARED_MEMORY, Row, Traces

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

WAITS = "import sys; print('there', flush=True); sys.stdin.read()"


@pytest.fixture
def traces(tmp_path: Path) -> Traces:
    return Traces(Family(), tmp_path, Address(port=free_port()))


def found(traces: Traces) -> dict[str, Row]:
    return {row.name: row for row in traces.rows()}


@pytest.fixture
def begin() -> Iterator[Any]:
    """Begins a program that waits, and ends it afterwards."""
    begun: list[subprocess.Popen[str]] = []

    def begin(code: str = WAITS, **more: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **more,
        )
        begun.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def test_nothing_is_left_where_nothing_was(traces):
    rows = found(traces)
    assert not any(row.after for row in rows.values())
    assert {"processes", "shared memory", "semaphores"} < set(rows)


def test_shared_memory_without_an_owner_is_found(traces):
    entry = SHARED_MEMORY / f"test-{uuid.uuid4().hex}"
    entry.touch()
    try:
        assert entry.name in found(traces)["shared memory"].after
    finally:
        entry.unlink()


def test_what_another_program_uses_is_not_counted(traces):
    segment = SharedMemory(create=True, size=4096)
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    try:
        rows = found(traces)
        mine = {segment.name, semaphore._semlock.name.lstrip("/")}
        seen = {*rows["shared memory"].after, *rows["semaphores"].after}
        assert not mine & seen
    finally:
        segment.close()
        segment.unlink()


MAPS = (
    "from multiprocessing import shared_memory; "
    "one = shared_memory.SharedMemory(create=True, size=4096); "
    "print(one.name, flush=True); import sys; sys.stdin.read()"
)


def test_what_a_killed_server_had_mapped_is_taken_away_and_nothing_else(
    tmp_path, begin
):
    family = Family()
    traces = Traces(family, tmp_path, Address(port=free_port()))
    process = begin(MAPS, start_new_session=True)
    family.top = process.pid
    stray = SHARED_MEMORY / f"test-{uuid.uuid4().hex}"
    stray.touch()
    beside = SharedMemory(create=True, size=4096)
    try:
        traces.look()
        (own,) = {entry.name for entry in SHARED_MEMORY.iterdir()} & set(
            found(traces)["shared memory"].after
        ) - {stray.name}
        traces.take_away()
        assert (SHARED_MEMORY / own).exists(), "it is in use"
        family.kill()
        traces.take_away()
        assert not (SHARED_MEMORY / own).exists()
        assert stray.exists(), "it may be anyone's"
        assert (SHARED_MEMORY / beside.name.lstrip("/")).exists()
    finally:
        stray.unlink()
        beside.close()
        beside.unlink()


def test_sockets_files_and_empty_directories_are_told_apart_and_caches_may_stay(
    traces, tmp_path
):
    (tmp_path / "torchinductor_me").mkdir()
    (tmp_path / "torchinductor_me" / "compiled").touch()
    (tmp_path / "vllm_dist").touch()
    (tmp_path / "metrics").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "ipc"))
    rows = found(traces)
    assert rows["socket files"].after == ("ipc",)
    assert rows["temporary files"].after == ("metrics", "vllm_dist")


def test_an_address_in_use_is_found(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        traces = Traces(Family(), tmp_path, Address(port=port))
        assert traces.in_the_way == (f"http://127.0.0.1:{port} answers",)
        assert found(traces)["address"].after
    assert not found(traces)["address"].after


def test_a_unix_socket_that_stays_is_found(tmp_path):
    path = tmp_path / "serve"
    traces = Traces(Family(), tmp_path / "none", Address(uds=str(path)))
    assert traces.in_the_way == ()
    path.touch()
    assert found(traces)["address"].after == (f"{path} is there",)


# -- whose a process is ------------------------------------------------------------


def test_a_stranger_is_nobody_of_the_family(begin):
    family = Family()
    family.top = begin(start_new_session=True).pid
    stranger = begin(start_new_session=True)
    pids = {one.pid for one in family.living()}
    assert family.top in pids
    assert not pids & {stranger.pid, os.getpid()}


def test_one_that_has_gone_its_own_way_is_known_by_its_mark(begin):
    family = Family()
    family.top = begin(start_new_session=True).pid
    marked = begin(start_new_session=True, env={**os.environ, MARK: family.mark})
    begin(start_new_session=True, env={**os.environ, MARK: Family().mark})
    assert {one.pid for one in family.living()} == {family.top, marked.pid}


def test_before_there_is_a_top_nobody_belongs_to_it():
    assert Family().living() == ()


def test_it_waits_for_the_last_and_no_longer(begin):
    family = Family()
    process = begin(start_new_session=True)
    family.top = process.pid
    timer = threading.Timer(0.2, process.kill)
    timer.start()
    family.gone_within(10.0)
    assert family.living() == ()
    assert process.wait(5) == -signal.SIGKILL


def test_it_kills_all_of_them_and_nobody_else(begin):
    family = Family()
    process, stranger = begin(start_new_session=True), begin(start_new_session=True)
    family.top = process.pid
    family.kill()
    assert process.wait(5) == -signal.SIGKILL
    assert stranger.poll() is None
