"""What program this process runs: a server and nothing more, or someone's own.

It is asked in every process that loads the package, so it imports next to nothing.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

COMMANDS = ("vllm", "vllm-ashutdown")
"""The console scripts that do nothing but what they are told on the command line."""

CLIS = (
    ("vllm_ashutdown", "cli", "__main__.py"),
    ("entrypoints", "cli", "main.py"),
)
"""The same, started with ``python -m``."""

SERVERS = (
    ("entrypoints", "openai", "api_server.py"),
    ("launchers", "api_server", "entry.py"),
)
"""What serves whatever it is told, started with ``python -m``."""


def is_the_whole_program() -> bool:
    """Whether this process runs a command of vLLM's or ours and nothing more.

    A program that calls the same functions has something to do afterwards.
    """
    path = _main()
    return path.name in COMMANDS or path.parts[-3:] in CLIS + SERVERS


def is_a_server() -> bool:
    """Whether this process is the top of a server, from its first line to its last."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    if _main().parts[-3:] in SERVERS:
        return True
    return is_the_whole_program() and sys.argv[1:2] == ["serve"]


def _main() -> Path:
    return Path(getattr(sys.modules.get("__main__"), "__file__", None) or "")
