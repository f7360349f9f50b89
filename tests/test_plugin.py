"""vLLM loads the plugin by itself, and a user decides whether it may."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from vllm.plugins import load_general_plugins
load_general_plugins()
print("laid" if "vllm_ashutdown.seams.installer" in sys.modules else "not laid")
"""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "laid"),
        ({"VLLM_PLUGINS": "something,ashutdown"}, "laid"),
        ({"VLLM_PLUGINS": "something"}, "not laid"),
        ({"VLLM_ASHUTDOWN": "0"}, "not laid"),
    ],
    ids=["by itself", "on the list", "not on the list", "switched off"],
)
def test_it_is_loaded(environment: dict[str, str], expected: str) -> None:
    own = ("VLLM_PLUGINS", "VLLM_ASHUTDOWN")
    inherited = {name: text for name, text in os.environ.items() if name not in own}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == expected
