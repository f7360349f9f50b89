"""The examples run as they stand, on real vLLM, and leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from tests import resources
from tests.scenes import BAD, ROOT
from tests.tiny_model import counts, tiny_model

EXAMPLES = ROOT / "docs" / "examples"
SECONDS = 240


def environment(temporary: Path) -> dict[str, str]:
    return os.environ | {
        "MODEL": str(tiny_model()),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(ROOT / "vllm"),
    }


def left_in(temporary: Path) -> list[str]:
    return [
        one.name
        for one in temporary.iterdir()
        if not one.name.startswith(("torchinductor", "tmp", "pytest-"))
    ]


def test_the_readme_names_each_of_them_and_no_other():
    named = set(re.findall(r"\]\((\w+\.\w+)\)", (EXAMPLES / "README.md").read_text()))
    kinds = (".py", ".ipynb")
    assert named == {path.name for path in EXAMPLES.iterdir() if path.suffix in kinds}


@pytest.mark.parametrize(
    "command",
    [
        ("training_loop.py",),
        ("-m", "pytest", "-q", "-c", os.devnull, "test_with_an_engine.py"),
    ],
    ids=["training loop", "pytest fixture"],
)
@pytest.mark.real
@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_in_one_process(command: tuple[str, ...], tmp_path: Path):
    done = subprocess.run(
        [sys.executable, *command],
        cwd=EXAMPLES,
        env=environment(tmp_path) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-3000:]
    assert not [line for line in said.splitlines() if BAD.search(line)]
    assert re.search(r"step 2: loss|2 passed", said)
    assert left_in(tmp_path) == []


@pytest.mark.real
@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_fastapi(tmp_path: Path):
    port = resources.free_port()
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "uvicorn", "fastapi_lifespan:app"),
            *("--host", "127.0.0.1", "--port", str(port)),
        ],
        cwd=EXAMPLES,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        assert server.stdout is not None
        said = []
        for line in server.stdout:
            said.append(line)
            if "Uvicorn running" in line:
                break
        url = f"http://127.0.0.1:{port}/complete?prompt=Count%20on%20from%20417"
        with urlopen(url, timeout=60) as answer:
            assert counts(json.load(answer)["text"])
        below = psutil.Process(server.pid).children(recursive=True)
        server.send_signal(signal.SIGTERM)
        said += server.communicate(timeout=30)[0].splitlines()
    assert server.returncode in (0, -signal.SIGTERM)  # by uvicorn's release
    _, alive = psutil.wait_procs(below, timeout=2)
    assert alive == []
    assert not [line for line in said if BAD.search(line)], said
    assert left_in(tmp_path) == []
