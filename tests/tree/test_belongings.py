"""What children have made is known above, and taken away when they cannot do it."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from msgspec import structs

from tests.tree import targets
from tests.tree.ear import tell
from vllm_ashutdown import settings
from vllm_ashutdown.core.claims import claims
from vllm_ashutdown.tree import belongings
from vllm_ashutdown.tree.belongings import made_by, release_for
from vllm_ashutdown.tree.child import Child, Invitation
from vllm_ashutdown.tree.door import Door
from vllm_ashutdown.tree.ending import kill
from vllm_ashutdown.tree.member import Member
from vllm_ashutdown.tree.message import receive


@pytest.fixture
def lists(tmp_path, monkeypatch):
    """Where this process lists what is made, for the next start."""
    monkeypatch.setenv(settings.STATE_DIRECTORY.name, str(tmp_path / "lists"))
    claims.withdraw()
    yield tmp_path / "lists"
    claims.withdraw()


@pytest.fixture
def pair():
    """The child's end of what it says to its parent, and the parent's."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, theirs:
        yield mine, theirs


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_top_knows_it_and_lists_it(ear, method, begin, tmp_path, lists, depth):
    kid, at = a_line_of(depth, ear, method, begin)
    path = make(tmp_path, at, ear)
    targets.a_home().door.caught_up(5)
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


def test_it_is_passed_on_where_its_maker_cannot_say_it_itself(ear, method, begin):
    kid, at = a_line_of(2, ear, method, begin)
    said = {"is": "made", "kind": "file", "path": "/nowhere", "pass on": True}
    tell(at, "send", message=said)
    until_known(kid, "/nowhere")


@pytest.mark.parametrize("door", ["nobody reads", "gone"])
def test_its_maker_never_waits_to_say_it(pair, door):
    mine, theirs = pair
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        address = f"\0vllm-ashutdown-test-{os.getpid()}"
        if door == "nobody reads":
            listener.bind(address)
            listener.listen(0)
        here = Member.here("test")
        above = Invitation(address, "token", here)
        tie = Child(here, Invitation("", "token", here, above), mine, [])
        for number in range(4):
            tie.tell_made("file", f"/{number}")
        said = [receive(theirs) for _ in range(4)]
    assert [words["path"] for words in said] == ["/0", "/1", "/2", "/3"]
    assert said[-1]["pass on"]


def test_what_is_forked_from_it_says_nothing_in_its_name(pair):
    mine, theirs = pair
    here = structs.replace(Member.here("test"), pid=1)
    Child(here, Invitation("", "token", here), mine, []).tell_made("file", "/x")
    mine.close()
    assert receive(theirs) is None


def test_all_that_the_killed_have_said_is_heard_first(ear, fork, tmp_path):
    kid = fork(targets.echo)
    paths = [tmp_path / str(number) for number in range(40)]
    for path in paths:
        path.touch()
        words = {"is": "made", "kind": "file", "path": str(path)}
        kid.say("send", message=words)
    kid.say("make", path=str(tmp_path / "last"))
    ear.hear("made")
    kill([kid.process])
    release_for([kid.process])
    assert list(tmp_path.iterdir()) == []


def test_without_descriptors_it_releases_what_it_knows(
    ear, fork, tmp_path, monkeypatch
):
    kid = fork(targets.echo)
    path = make(tmp_path, kid.at, ear)
    assert targets.a_home().door.caught_up(5)
    kill([kid.process])

    def none_left(*args: object) -> None:
        raise OSError(errno.EMFILE, "no descriptors left")

    monkeypatch.setattr("vllm_ashutdown.tree.door.socket.socket", none_left)
    release_for([kid.process])
    assert not path.exists()


def test_it_waits_for_the_last_words_and_not_for_more(ear, fork, monkeypatch):
    kid = fork(targets.echo)
    here = targets.a_home()
    assert here.door.caught_up(5)
    monkeypatch.setattr(Door, "_accept", lambda self: time.sleep(0.01))
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


def until_known(kid, path: str) -> None:
    """What is passed on takes a turn of each home in between."""
    until = time.monotonic() + 10
    while path not in made_by([kid.process]):
        assert time.monotonic() < until
        targets.a_home().door.caught_up(1)


def make(place: Path, at: str, ear) -> Path:
    """Has whoever listens there make a file."""
    place.mkdir(exist_ok=True)
    tell(at, "make", path=str(place / "made"))
    ear.hear("made")
    return place / "made"
