"""What children have made is known above, and taken away when they cannot do it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.tree import targets
from tests.tree.ear import tell
from vllm_ashutdown import settings
from vllm_ashutdown.core.claims import claims
from vllm_ashutdown.tree import belongings
from vllm_ashutdown.tree.belongings import made_by, release_for
from vllm_ashutdown.tree.ending import kill


@pytest.fixture
def lists(tmp_path, monkeypatch):
    """Where this process lists what is made, for the next start."""
    monkeypatch.setenv(settings.STATE_DIRECTORY.name, str(tmp_path / "lists"))
    claims.withdraw()
    yield tmp_path / "lists"
    claims.withdraw()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_top_knows_it_and_lists_it(ear, method, begin, tmp_path, lists, depth):
    kid, at = a_line_of(depth, ear, method, begin)
    path = make(tmp_path, at, ear)
    targets.a_home().caught_up(5)
    assert made_by([kid.process]) == {str(path): "file"}
    listed = [each.read_text() for each in lists.iterdir()]
    assert [text.count(str(path)) for text in listed] == [1]


@pytest.mark.parametrize("depth", [2, 3])
def test_a_halted_parent_is_not_needed_for_that(ear, method, begin, tmp_path, depth):
    kid, at = a_line_of(depth, ear, method, begin)
    os.kill(kid.pid, signal.SIGSTOP)
    path = make(tmp_path, at, ear)
    kill([kid.process])
    assert path.exists()
    release_for([kid.process])
    assert not path.exists()


def test_what_lives_keeps_what_it_has_made(ear, fork, tmp_path):
    kid, other = fork(targets.echo), fork(targets.echo)
    paths = [make(tmp_path / "a", kid.at, ear), make(tmp_path / "b", other.at, ear)]
    release_for([kid.process])
    kill([other.process])
    release_for([other.process])
    assert [path.exists() for path in paths] == [True, False]


def test_it_waits_for_the_last_words_and_not_for_more(ear, fork, monkeypatch):
    kid = fork(targets.echo)
    here = targets.a_home()
    assert here.caught_up(5)
    monkeypatch.setattr(type(here), "_accept", lambda self: time.sleep(0.01))
    monkeypatch.setattr(belongings, "LAST_WORDS_SECONDS", 0.1)
    kill([kid.process])
    began = time.monotonic()
    release_for([kid.process])
    assert 0.1 <= time.monotonic() - began < 1


def a_line_of(depth, ear, method, begin):
    """One child, with others one below the other, and where the last one listens."""
    if depth == 1:
        kid = begin(targets.echo)
        return kid, kid.at
    if depth == 2:
        kid = begin(targets.middle, method, "echo")
    else:
        kid = begin(targets.above_middle, method)
    return kid, ear.hear("below")["at"]


def make(place: Path, at: str, ear) -> Path:
    """Has whoever listens there make a file."""
    place.mkdir(exist_ok=True)
    tell(at, "make", path=str(place / "made"))
    ear.hear("made")
    return place / "made"
