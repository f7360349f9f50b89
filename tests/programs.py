"""A small program in an interpreter of its own, and what is left behind it.

For what happens as a process ends: only another process can look at that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_BAD = ("resource_tracker", "leaked", "Traceback", "Exception", "Error")

PRELUDE = """
import os, signal, sys
import vllm_ashutdown
from vllm_ashutdown.core.files import ledger, memory_path
from vllm_ashutdown.process_exit import fast_exit

if {plugin}:
    vllm_ashutdown.register()

def tell(*what):
    print(*what, flush=True)
"""


def run(
    program: str,
    *,
    plugin: bool = True,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, list[str], str]:
    """Runs ``program`` to its end and to that of its resource tracker.

    Args:
        program: Its text. ``tell(...)`` prints a line; the ledger and the fast exit
            are there by their names.
        plugin: Whether the seams are laid.
        environment: On top of the caller's.

    Returns:
        Its exit code, its lines, and what it, or the tracker behind it, complained of.
    """
    source = PRELUDE.format(plugin=plugin) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", source],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(ROOT / "vllm"), *_inherited()])}
        | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    complaints = [
        line for line in done.stderr.splitlines() if any(word in line for word in _BAD)
    ]
    return done.returncode, done.stdout.splitlines(), "\n".join(complaints)


def _inherited() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
