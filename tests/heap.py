"""What is imported by now, out of the garbage collector's rounds."""

from __future__ import annotations

import atexit
import gc


def freeze() -> None:
    """Takes it out, until the process ends.

    With torch in the heap each round would take a third of a second. It is put back at
    the end: what is still frozen then is never freed, and the extension modules of
    others print what they call their leaks.
    """
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)
