"""The reference says what is in the code, and the README knows no other names."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.scenes import ROOT
from vllm_ashutdown import settings
from vllm_ashutdown.cli.main import build_parser
from vllm_ashutdown.exit_code import ExitCode
from vllm_ashutdown.seams.registry import SEAMS

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ref", ROOT / "docs/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_up_to_date(reference):
    assert reference.main(["--check"]) == 0


def test_one_that_is_not_is_told(reference, tmp_path, capsys):
    reference.PAGE = tmp_path / "reference.md"
    assert reference.main(["--check"]) == 1
    assert "run `python docs/reference.py`" in capsys.readouterr().err
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0


def test_all_of_it_is_there(reference):
    text = reference.page()
    for name in (
        *(one.name for one in settings.VARIABLES),
        *(one.name for one in SEAMS),
        *(one.name for one in ExitCode),
        *("EngineClosedError", "InvalidSettingError", "vllm:shutdown_requests_total"),
        *("vllm-ashutdown audit", "--compare", "--html", "`drain`"),
    ):
        assert name in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_names_a_variable_or_a_command_that_does_not_exist(page: Path):
    text = page.read_text()
    known = {one.name for one in settings.VARIABLES}
    assert set(re.findall(r"VLLM_ASHUTDOWN(?:_[A-Z]+)*", text)) <= known
    commands = set(re.findall(r"`vllm-ashutdown ([a-z]+)", text))
    choices: set[str] = set()
    for action in build_parser()._actions:
        choices |= set(action.choices or ())
    assert commands <= choices


def test_every_exit_code_is_in_the_readme():
    text = (ROOT / "README.md").read_text()
    for code in ExitCode:
        assert f"| {code:d} |" in text
