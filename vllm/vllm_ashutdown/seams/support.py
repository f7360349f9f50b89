"""Which releases of vLLM the seams are made for, and a word where it is another."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("vllm.ashutdown")

OLDEST = (0, 28)
NEWEST = (0, 33)
SUPPORTED = "vLLM {}.{} to {}.{}".format(*OLDEST, *NEWEST)
"""The same for people."""

_said: set[str] = set()


def warn_if_unsupported() -> None:
    """One warning where the vLLM that is loaded is none of the supported releases.

    Each seam's guard decides by itself. But a module that has moved is never imported
    under its old name, so nothing else would tell that its seams wait in vain.
    """
    vllm = sys.modules.get("vllm")
    release = getattr(vllm, "__version_tuple__", ())[:2]
    version = str(getattr(vllm, "__version__", ""))
    if not _is_release(release) or OLDEST <= release <= NEWEST or version in _said:
        return
    if _is_child():
        return  # the process on top has said it
    _said.add(version)
    logger.warning(
        "[shutdown] this is vLLM %s, and vllm-ashutdown supports %s. What does not fit "
        "is left as vLLM has it; `vllm-ashutdown seams` lists what does. Update "
        "vllm-ashutdown, or switch it off with VLLM_ASHUTDOWN=0.",
        version,
        SUPPORTED,
    )


def _is_release(release: tuple[object, ...]) -> bool:
    """Whether it is a number: a source tree without one says 0.0, and "dev"."""
    whole = len(release) == 2 and all(isinstance(part, int) for part in release)
    return whole and release != (0, 0)


def _is_child() -> bool:
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None
