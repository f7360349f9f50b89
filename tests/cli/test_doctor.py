"""What the command says; what it finds is tested beside each part."""

from __future__ import annotations

import json

import pytest

from vllm_ashutdown.cli import doctor as module
from vllm_ashutdown.cli.main import main
from vllm_ashutdown.seams.registry import SEAMS
from vllm_ashutdown.seams.seam import State


@pytest.fixture
def laid(monkeypatch, tmp_path):
    """A vLLM that every seam fits, without the seconds that its import takes."""
    monkeypatch.setenv("VLLM_ASHUTDOWN_STATE_DIRECTORY", str(tmp_path / "lists"))
    rows = [(seam, State.LAID, "") for seam in SEAMS]
    monkeypatch.setattr(module, "states", lambda: rows)
    return rows


def test_without_a_problem_the_exit_code_is_0(laid, capsys):
    code = main(["doctor", "--shutdown-timeout", "30"])
    text = capsys.readouterr().out
    assert code == int("\nproblem " in text)
    for words in ("vllm", "seams", "/dev/shm", "40 s at most", "leftovers"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_problem_is_exit_code_1_and_says_what_to_do(laid, capsys):
    laid[0] = (SEAMS[0], State.SKIPPED, "no such parameter")
    assert main(["doctor"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "problem seams" in text
    assert "skipped: no such parameter" in text
    assert SEAMS[0].why.split(".")[0][:40] in text


def test_as_json(laid, capsys):
    laid[0] = (SEAMS[0], State.SKIPPED, "no such parameter")
    assert main(["doctor", "--json"]) == 1
    words = json.loads(capsys.readouterr().out)
    assert words["problem"] is True
    levels = {one["topic"]: one["level"] for one in words["findings"]}
    assert levels["seams"] == "problem"
    assert levels["vLLM"] in ("ok", "warning")


@pytest.mark.parametrize("value", ["-1", "soon", "nan"])
def test_a_drain_that_makes_no_sense_is_a_usage_error(capsys, value):
    with pytest.raises(SystemExit) as caught:
        main(["doctor", "--shutdown-timeout", value])
    assert caught.value.code == 2
    assert "--shutdown-timeout" in capsys.readouterr().err
