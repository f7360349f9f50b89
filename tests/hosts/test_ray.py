"""A real engine in an actor of Ray's: whatever ends the actor, nothing stays behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts import ray_scenes
from tests.hosts.rays import SECONDS, cluster
from tests.scenes import BAD, ROOT, play
from tests.tiny_model import tiny_model

pytestmark = [pytest.mark.hosts, pytest.mark.real, pytest.mark.timeout(2000)]

IN_ORDER = "audit done"
"""The last phase of a stop that was one."""


@pytest.mark.parametrize(
    "scene", ["exit_actor", "exit_actor_with_a_loop", "terminated", "closed_and_killed"]
)
def test_its_engine_is_closed_in_order(tmp_path: Path, scene: str):
    with cluster() as rays:
        found = play(
            ray_scenes.__name__,
            scene,
            tmp_path,
            environment=rays.environment,
            seconds=SECONDS,
        )
        assert found["left"] == []
        assert rays.faults() == []
        assert len(re.findall(IN_ORDER, rays.log())) == 1


@pytest.mark.parametrize("scene", ["killed", "driver_ends"])
def test_without_a_word_its_engine_is_gone_all_the_same(tmp_path: Path, scene: str):
    with cluster() as rays:
        found = play(
            ray_scenes.__name__,
            scene,
            tmp_path,
            environment=rays.environment,
            killed=True,
            seconds=SECONDS,
        )
        assert found["left"] == []
        if scene == "killed":  # where its driver ends, Ray may give an actor time
            assert IN_ORDER not in rays.log()


def test_the_example(tmp_path: Path):
    with cluster() as rays:
        done = subprocess.run(
            [sys.executable, "ray_actor.py"],
            cwd=ROOT / "docs" / "examples",
            env=os.environ
            | {
                "MODEL": str(tiny_model()),
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "TMPDIR": str(tmp_path),
                "PYTHONPATH": str(ROOT / "vllm"),
            }
            | rays.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said[-3000:]
        assert not [line for line in said.splitlines() if BAD.search(line)]
        assert re.search(r"417 -> +418 419 420", done.stdout)
        assert "nothing left" in done.stdout
        assert rays.faults() == []
