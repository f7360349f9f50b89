"""A real engine in a program: every way to stop it is silent and complete."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.v1.shutdown.library_scenes import SCENES

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[3]
BAD = re.compile(
    r"ERROR|Traceback|Exception ignored|Task was destroyed|never retrieved"
    r"|resource_tracker|force killing|destroy_process_group|Unclosed context",
)


@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: str, tmp_path: Path):
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    run = subprocess.run(
        [sys.executable, "-m", "tests.v1.shutdown.library_scenes", scene],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    said = run.stdout + run.stderr
    assert run.returncode == 0, said[-4000:]
    found = json.loads(re.search(r"^FOUND (.*)$", run.stdout, re.M)[1])
    print(scene, found)  # pytest -rP shows it
    bad = [line for line in said.splitlines() if BAD.search(line)]
    assert not bad, "\n".join(bad)
    # What the engine made in the file system is gone with it.
    left = [
        one.name
        for one in tmp_path.iterdir()
        if not one.name.startswith(("torchinductor", "tmp"))
    ]
    assert not left, left
    if "callers_ms" in found:
        assert found["callers_ms"] < 100
    if "held_ms" in found:
        # 20 ms is the promise; a machine that two others use may take a turn.
        assert found["held_ms"] < 60
