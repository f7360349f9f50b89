"""A scene: a program that uses a real engine, in a process of its own.

What a program leaves on stderr and what it exits with can only be seen from outside. A
module of scenes ends with ``main(SCENES)``; a test runs one with :func:`play`.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from tests.loops import RUNNERS

Found = dict[str, Any]
Scene = Callable[[], Awaitable[Found] | Found]

ROOT = Path(__file__).resolve().parent.parent

BAD = re.compile(
    r"ERROR|Traceback|Exception ignored|Task was destroyed|never (retrieved|awaited)"
    r"|resource_tracker|force killing|destroy_process_group|ResourceWarning"
)
"""What no program may say that stops its engine, also under ``python -X dev``."""

_STOCKS = re.compile(
    # A core of vLLM's lets go of the context of its handshake, once it has begun.
    r"contextlib\.py:\d+: ResourceWarning: Unclosed context"
    r"|ResourceWarning: Enable tracemalloc"
)

INTERRUPTS = "INTERRUPTS"
"""How often a scene that is interrupted is: the variable. Five times in the gate."""

LOOP = "LOOP"
"""Of `tests.loops`, the one on which a scene is awaited: the variable."""

SECONDS = 300.0


def main(scenes: Mapping[str, Scene]) -> None:
    """Runs the scene named on the command line and prints what it measured."""
    scene = scenes[sys.argv[1]]
    found = scene()
    if inspect.isawaitable(found):
        with RUNNERS[os.environ.get(LOOP, "asyncio")]() as runner:
            found = runner.run(_whole(found))
    print("FOUND " + json.dumps(found), flush=True)


async def _whole(result: Awaitable[Found]) -> Found:
    return await result


def play(
    module: str,
    scene: str,
    temporary: Path,
    *,
    options: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    code: int = 0,
    bad: re.Pattern[str] = BAD,
    killed: bool = False,
    seconds: float = SECONDS,
) -> Found:
    """Runs a scene to its end, and asserts that it is silent and leaves nothing.

    Args:
        module: Whose ``main`` plays it.
        scene: Its name there.
        temporary: Its directory for temporary files.
        options: Of the interpreter.
        environment: On top of what each scene gets.
        code: What it must exit with.
        bad: What it must not say.
        killed: Its engine is: the next start takes away what that leaves in files.
        seconds: That it may take.

    Returns:
        What it has measured; nothing if it did not come to that.
    """
    run = subprocess.run(
        [sys.executable, *options, "-m", module, scene],
        cwd=ROOT,
        env=os.environ
        | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "TMPDIR": str(temporary),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "vllm"), str(ROOT)]),
        }
        | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    said = run.stdout + run.stderr
    assert run.returncode == code, said[-4000:]
    wrong = [
        line
        for line in said.splitlines()
        if bad.search(line) and not _STOCKS.search(line)
    ]
    assert not wrong, "\n".join(wrong)
    left = [
        one.name
        for one in temporary.iterdir()
        if not one.name.startswith(("torchinductor", "tmp"))
    ]
    assert killed or not left, left
    match = re.search(r"^FOUND (.*)$", run.stdout, re.MULTILINE)
    found: Found = {} if match is None else json.loads(match[1])
    print(scene, found)  # pytest -rP shows it
    return found
