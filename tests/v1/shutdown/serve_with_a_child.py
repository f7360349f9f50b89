"""Serves from a process that has a child of its own, which is no part of vLLM."""

from __future__ import annotations

import subprocess
import sys

from vllm_ashutdown.cli.main import main

if __name__ == "__main__":
    # It holds nothing of ours, and ends by itself when the test is long over.
    child = subprocess.Popen(
        ["sleep", "300"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    print(f"bystander {child.pid}", flush=True)
    sys.exit(main(sys.argv[1:]))
