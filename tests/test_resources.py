"""The harness sees what it must see: kinds of processes, and when they are gone."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests import resources
from tests.resources import SHARED_MEMORY, Watch, kind_of

Start = Callable[[str], psutil.Process]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a shell script in a session of its own; each must say one word first."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str) -> psutil.Process:
        process = subprocess.Popen(
            ["bash", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return psutil.Process(process.pid)

    yield start
    for process in started:
        resources.kill(resources.session(process.pid))
        process.communicate()


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("VLLM::EngineCore", "EngineCore"),
        ("VLLM::EngineCore_DP1", "EngineCore"),
        ("VLLM::Worker", "Worker"),
        ("VLLM::Worker_DP0_TP1", "Worker"),
        ("VLLM::APIServer_3", "APIServer"),
        ("VLLM::DPCoordinator", "Coordinator"),
        ("python -c from multiprocessing.resource_tracker import", "resource_tracker"),
        ("python -c from multiprocessing.spawn import", "other"),
    ],
)
def test_the_title_says_the_kind(start: Start, title: str, kind: str) -> None:
    # The shell keeps its own title up to the moment at which it becomes the other.
    process = start(f'exec -a "{title}" bash -c "echo here; read"')
    assert kind_of(process) == kind


def test_gone_is_who_ended_and_left_is_who_did_not(
    start: Start, tmp_path: Path
) -> None:
    top = start("sleep 600 & sleep 601 & echo here; wait")
    first, second = top.children()
    watch = Watch(top, resources.free_port(), tmp_path, resources.memory_names())
    watch.start()
    watch.look()
    began = time.monotonic()
    top.kill()
    first.kill()
    gone = watch.gone_within(0.2)
    assert gone.left == [f"{second.pid} sleep 601"]
    assert began < gone.at < time.monotonic() - 0.1

    # A zombie is gone: nobody has reaped the one on top.
    second.kill()
    assert watch.gone_within(10).left == []
    assert top.status() == psutil.STATUS_ZOMBIE
    watch.stop()


@pytest.fixture
def names() -> Iterator[tuple[str, str, str]]:
    """Three names in /dev/shm that nobody else has."""
    prefix = f"ashutdown-{os.getpid()}"
    found = (f"{prefix}-own", f"{prefix}-other", f"{prefix}-nobodys")
    yield found
    for name in found:
        (SHARED_MEMORY / name).unlink(missing_ok=True)


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="there is no /dev/shm")
@pytest.mark.parametrize("others", [True, False])
def test_what_nobody_holds_is_the_servers_unless_others_are_at_work(
    start: Start,
    names: tuple[str, str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    others: bool,
) -> None:
    own, other, nobodys = names
    top = start("echo here; read")
    watch = Watch(top, resources.free_port(), tmp_path, resources.memory_names())
    holder = start(f"exec 3> /dev/shm/{own}; echo here; read")
    stranger = start(f"exec 3> /dev/shm/{other}; echo here; read")
    (SHARED_MEMORY / nobodys).touch()
    memory_of = resources.memory_of

    def held_by(pid: int) -> set[str]:
        if others or pid in (top.pid, holder.pid):
            return memory_of(pid)
        return set()

    monkeypatch.setattr(resources, "memory_of", held_by)
    monkeypatch.setattr(resources, "tree", lambda _: {top, holder})
    watch.start()
    watch.look()
    resources.kill([top, holder])
    found = set(watch.left(0.1))
    expected = {own} if others else {own, other, nobodys}
    assert {one for one in found if "ashutdown" in one} == {
        f"shared memory {name}" for name in expected
    }
    assert resources.is_alive(stranger)
    watch.stop()


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="there is no /dev/shm")
def test_what_a_killed_server_had_alone_is_taken_away(
    start: Start, names: tuple[str, str, str], tmp_path: Path
) -> None:
    own, other, nobodys = names
    top = start(f"exec 3> /dev/shm/{own} 4> /dev/shm/{other}; echo here; read")
    stranger = start(f"exec 3< /dev/shm/{other}; echo here; read")
    watch = Watch(top, resources.free_port(), tmp_path, set())
    (SHARED_MEMORY / nobodys).touch()
    watch.look()
    resources.kill([top])
    watch.take_away()
    assert not resources.memory_names() & {own}
    assert resources.memory_names() >= {other, nobodys}
    assert resources.is_alive(stranger)
