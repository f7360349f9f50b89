"""A program that is killed takes its engine's processes along, and no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests import resources
from vllm_ashutdown.tree.member import Member

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[3]
# Promised is 1 s, which make matrix and benchmarks measure; here others may use the
# machine.
GONE_SECONDS = 2.0


@pytest.mark.parametrize(
    "method", ["fork", pytest.param("spawn", marks=pytest.mark.matrix)]
)
def test_its_engine_is_gone_at_once(
    method: str, tmp_path: Path, figure: Callable[[str, float], None]
) -> None:
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": method,
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    log = tmp_path / "program.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.v1.shutdown.program_to_kill"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as program,
    ):
        assert program.stdout is not None
        said = next((one for one in program.stdout if one.startswith("PIDS ")), None)
        assert said is not None, log.read_text()[-4000:]
        pids = json.loads(said.removeprefix("PIDS "))
        vllms = [psutil.Process(pid) for pid in pids["vllm"]]
        (own,) = [psutil.Process(pid) for pid in pids["own"]]
        names = {one.pid: resources.name_of(one) for one in vllms}
        assert any("EngineCore" in name for name in names.values())
        assert any("Worker" in name for name in names.values())
        # By the kernel's word on each: who has no parent any more is a zombie until
        # init comes to look.
        members = [Member.of(pid, name) for pid, name in names.items()]
        killed_at = time.monotonic()
        program.kill()
        until = killed_at + 15
        alive = [
            str(one) for one in members if not one.gone_within(until - time.monotonic())
        ]
        seconds = time.monotonic() - killed_at
    try:
        figure("from SIGKILL to the end of the last process", seconds)
        assert alive == []
        assert seconds < GONE_SECONDS
        assert resources.is_alive(own), "its own child went too"
    finally:
        own.kill()
