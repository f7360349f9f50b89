"""Real things to be seen, for the length of one test."""

from __future__ import annotations

import sys
import tempfile
import threading
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _of_this_test_alone(monkeypatch):
    """Tests before this one may have had children: the thread that hears them stays."""
    every = threading.enumerate
    older = set(every()) - {threading.current_thread()}
    monkeypatch.setattr(
        threading, "enumerate", lambda: [one for one in every() if one not in older]
    )


@pytest.fixture
def segment():
    """The name of a segment; this process does not map it."""
    segment = SharedMemory(create=True, size=4096)
    segment.close()
    yield segment.name
    segment.unlink()


@pytest.fixture
def folder():
    """A short path, as a socket's must be."""
    with tempfile.TemporaryDirectory(prefix="inv") as name:
        yield Path(name)


@pytest.fixture
def plant(monkeypatch):
    def plant(modules: dict[str, object]) -> None:
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    return plant
