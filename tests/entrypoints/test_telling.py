"""Whom a server tells of its stop, and that a program's own stop tells nobody."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import setproctitle

from tests.served import served, signalled
from tests.stub_core import StubCore, make_engine
from vllm_ashutdown.adapters import http_server


@pytest.fixture
def core() -> Iterator[StubCore]:
    one = StubCore()
    yield one
    one.close()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch) -> Iterator[socket.socket]:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(path)
        one.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        yield one


@pytest.fixture
def titles(monkeypatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(setproctitle, "setproctitle", found.append)
    monkeypatch.setattr(setproctitle, "getproctitle", lambda: "vllm serve")
    return found


def heard(manager: socket.socket) -> list[str]:
    messages = []
    with contextlib.suppress(BlockingIOError):
        while True:
            messages.append(manager.recv(4096).decode())
    return messages


async def test_a_server_tells_its_manager_and_shows_its_phase(
    core, manager, titles, monkeypatch
):
    monkeypatch.setattr(http_server, "is_the_whole_program", lambda: True)
    async with served(make_engine(core, 30)) as server:
        stream, _ = await server.stream()
        assert heard(manager) == []
        assert titles == []
        await signalled(server)
        first = heard(manager)[0].splitlines()
        assert first[0] == "STOPPING=1"
        assert 40e6 < float(first[1].removeprefix("EXTEND_TIMEOUT_USEC=")) <= 50e6
        assert titles[-1] == "vllm serve [shutdown: drain]"
        core.finish_all()
        await stream
        await server.over()
    phases = ["end", "handler", "core", "release", "audit"]
    *rest, last = [one for one in heard(manager) if " in " not in one]
    assert [one.split()[1].rstrip(",") for one in rest] == phases
    assert last.startswith("STATUS=stopped: signal SIGTERM, drain")
    assert titles[-2:] == ["vllm serve [shutdown: audit]", "vllm serve"]


async def test_a_server_inside_of_a_program_tells_nobody(core, manager, titles):
    async with served(make_engine(core, 0)) as server:
        server.stop()
        await server.over()
    assert heard(manager) == []
    assert titles == []


async def test_a_programs_own_stop_tells_nobody(core, manager, titles, monkeypatch):
    monkeypatch.setattr(http_server, "is_the_whole_program", lambda: True)
    await make_engine(core).ashutdown()
    assert heard(manager) == []
    assert titles == []
