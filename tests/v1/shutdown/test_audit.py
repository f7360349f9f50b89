"""The audit of a real server: clean with the package, and what it finds without."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.programs import ROOT
from tests.tiny_model import tiny_model
from vllm_ashutdown.audit.server import free_port
from vllm_ashutdown.cli.main import main

pytestmark = [pytest.mark.real, pytest.mark.matrix, pytest.mark.timeout(900)]

STREAMS = 4


def test_stock_and_the_package_side_by_side(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "vllm"), str(ROOT)]))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    out = tmp_path / "audit.json"
    serve = [sys.executable, "-m", "vllm_ashutdown.cli", "serve", str(tiny_model())]
    serve += ["--enforce-eager", "--num-gpu-blocks-override", "1024"]
    serve += ["--port", str(free_port())]
    options = ["--compare", "--limit", "15", "--streams", str(STREAMS)]
    code = main(["audit", *options, "--json", str(out), "--", *serve])
    print(capsys.readouterr().out)
    stock, ours = json.loads(out.read_text())
    assert code == 0
    assert (ours["clean"], ours["exit_code"]) == (True, 0)
    assert [one["end"] for one in ours["streams"]] == ["ended by an error"] * STREAMS
    assert all(one["retryable"] for one in ours["streams"])
    assert not any(row["after"] for row in ours["rows"])
    before = {row["name"]: len(row["during"]) for row in ours["rows"]}
    assert before["processes"] >= 3
    assert before["shared memory"] > 0
    # What stock does differs from run to run, and is never all that is promised.
    assert (stock["stock"], stock["clean"], stock["report"]) == (True, False, None)
