"""A target that brings its invitation along, and is the function that it stands for."""

from __future__ import annotations

import inspect
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

from tests.tree import targets
from vllm_ashutdown.tree import child, entry
from vllm_ashutdown.tree.entry import Entry

CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = []


def run(*args: Any, **kwargs: Any) -> None:
    CALLS.append((args, kwargs))


def original(address: str, *, rank: int = 0) -> None:
    """Vllm's own."""


@pytest.fixture
def calls() -> list[Any]:
    CALLS.clear()
    return CALLS


def test_it_shows_the_signature_of_what_it_stands_for():
    stands_for = Entry(run, original)
    assert inspect.signature(stands_for) == inspect.signature(original)
    assert stands_for.__wrapped__ is original  # type: ignore[attr-defined]
    assert stands_for.__name__ == "original"  # type: ignore[attr-defined]
    assert stands_for.__doc__ == original.__doc__
    assert inspect.signature(Entry(run)) == inspect.signature(run)


def test_called_in_the_parent_itself_it_just_runs(calls, monkeypatch):
    monkeypatch.setattr(child, "arrive", lambda *_: pytest.fail("it is no child"))
    invited = pickle.loads(pickle.dumps(Entry(run)))
    for one in (Entry(run), invited):
        one(1, rank=2)
    assert calls == [((1,), {"rank": 2})] * 2


@pytest.mark.parametrize("pickler", [pickle, ForkingPickler])
def test_pickled_it_brings_the_invitation_and_the_function(pickler):
    one = Entry(run, original)
    assert one._invitation is None
    copied = pickle.loads(pickler.dumps(one))
    assert copied._invitation == targets.a_home().invitation
    assert copied._run is run


def test_where_there_is_no_home_it_brings_none(monkeypatch, calls):
    monkeypatch.setattr(entry, "home", lambda: None)
    copied = pickle.loads(pickle.dumps(Entry(run)))
    assert copied._invitation is None
    copied()
    assert calls == [((), {})]


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_the_child_is_tied_to_its_parent_however_it_begins(ear, begin_by, way):
    kid = begin_by(way, targets.noting)
    record = targets.a_home().record(kid.pid)
    assert record.member == kid.member
    kid.process.terminate()
    assert ear.hear("meant")["pid"] == kid.pid
