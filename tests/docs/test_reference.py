"""The reference says what is in the code."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.scenes import ROOT
from vllm_ashutdown import settings
from vllm_ashutdown.exit_code import ExitCode
from vllm_ashutdown.seams.registry import SEAMS


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
