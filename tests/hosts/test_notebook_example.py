"""The notebook among the examples runs as it stands, cell after cell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hosts.notebook import Kernel
from tests.scenes import ROOT
from tests.tiny_model import counts, tiny_model

pytestmark = [pytest.mark.hosts, pytest.mark.real, pytest.mark.timeout(2000)]

NOTEBOOK = ROOT / "docs" / "examples" / "notebook.ipynb"


def test_the_notebook(tmp_path: Path):
    notebook = json.loads(NOTEBOOK.read_text())
    cells = {
        one["id"]: "".join(one["source"])
        for one in notebook["cells"]
        if one["cell_type"] == "code"
    }
    with Kernel(tmp_path, {"MODEL": str(tiny_model())}) as kernel:
        said = {name: kernel.run(code).said for name, code in cells.items()}
        assert kernel.children() == []
        kernel.shut_down()
    assert "417 ->  418 419 420" in said["ask"]
    assert "nothing left" in said["close"]
    assert counts(said["async-ask"].splitlines()[-1])  # vLLM may have warned before it
    assert "nothing left" in said["async-close"]
    assert kernel.faults() == []


def test_it_is_kept_as_it_is_written_and_not_as_it_was_run():
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
