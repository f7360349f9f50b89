"""What the command says of the dead, the living and the refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from vllm_ashutdown import settings
from vllm_ashutdown.cli.main import main
from vllm_ashutdown.core.claims import Claims


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that a dead instance has left."""
    monkeypatch.setenv(settings.STATE_DIRECTORY.name, str(tmp_path / "lists"))
    path = tmp_path / "left"
    path.touch()
    claims = Claims()
    claims.note("file", str(path))
    claims.withdraw()  # like a kill for a list that names something
    return path


def test_it_shows_and_touches_nothing(left, capsys):
    assert main(["reclaim"]) == 1
    out = capsys.readouterr().out
    assert f"file {left} found" in out
    assert "is dead and left" in out
    assert "vllm-ashutdown reclaim --remove" in out
    assert left.exists()


def test_it_removes_when_asked_to(left, capsys):
    assert main(["reclaim", "--remove"]) == 0
    assert f"file {left} removed" in capsys.readouterr().out
    assert not left.exists()
    assert main(["reclaim"]) == 0
    assert capsys.readouterr().out.startswith("Nothing is left.")


def test_it_refuses_with_a_reason(left, capsys):
    with left.open() as file, subprocess.Popen(["sleep", "9"], stdin=file) as holder:
        try:
            assert main(["reclaim", "--remove"]) == 1
        finally:
            holder.kill()
    out = capsys.readouterr().out
    assert f"refused: process {holder.pid} has it open" in out
    assert "Run this again when the reason is gone" in out
    assert left.exists()


def test_another_file_that_has_come_to_its_place_is_none_of_its(left, capsys):
    other = left.with_name("other")
    other.touch()
    other.rename(left)
    assert main(["reclaim"]) == 0
    assert main(["reclaim", "--remove"]) == 0
    assert capsys.readouterr().out.count("Nothing is left.") == 2
    assert left.exists()


def test_of_a_living_one_it_says_that_it_lives(left, capsys):
    claims = Claims()
    claims.note("file", str(left.with_name("mine")))
    assert main(["reclaim", "--remove"]) == 0
    assert "is alive: what it has is its own" in capsys.readouterr().out
    claims.withdraw()


def test_as_json(left, capsys):
    assert main(["reclaim", "--json"]) == 1
    words = json.loads(capsys.readouterr().out)
    assert [one["verdict"] for one in words["leftovers"]] == ["found"]
    assert words["leftovers"][0]["path"] == str(left)
    assert words["alive"] == []
