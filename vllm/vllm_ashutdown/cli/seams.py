"""``vllm-ashutdown seams``: every touched attribute and its state."""

from __future__ import annotations

import importlib
import json
import logging

from .. import register
from ..seams.installer import state_of
from ..seams.registry import SEAMS
from ..seams.seam import Seam, State


def show(*, as_json: bool) -> int:
    """Prints each seam and its state for the vLLM that is installed.

    Returns:
        0 if every seam is laid whose module is there, 1 if one is skipped, 2 without
        a vLLM.
    """
    from .main import fail

    try:
        rows = states()
    except ImportError as error:
        return fail(f"vLLM cannot be imported here: {error}")
    import vllm

    if as_json:
        found = [
            {
                "name": seam.name,
                "how": seam.how,
                "state": state,
                "reason": reason,
                "why": seam.why,
                "reference": seam.reference,
                "until": seam.until,
            }
            for seam, state, reason in rows
        ]
        print(json.dumps({"vllm": vllm.__version__, "seams": found}, indent=2))
    else:
        print(f"vLLM {vllm.__version__}: what vllm-ashutdown touches, and why\n")
        for seam, state, reason in rows:
            print(f"{state:8} {seam.how:8} {seam.name}")
            print(f"         {reason or seam.why} ({seam.reference})")
    return int(
        any(
            state is State.SKIPPED or (_is_absent(state) and not reason)
            for _, state, reason in rows
        )
    )


def states() -> list[tuple[Seam, State, str]]:
    """Each seam, its state for the vLLM that is installed, and why it is not laid.

    Imports vLLM and all of its modules that are touched.

    Raises:
        ImportError: there is no vLLM, or it cannot be imported.
    """
    import vllm  # noqa: F401

    register()
    rows = []
    for seam in SEAMS:
        missing = _import_target(seam)
        state, reason = state_of(seam)
        rows.append((seam, state, reason or (missing if _is_absent(state) else "")))
    return rows


def _is_absent(state: State) -> bool:
    return state is State.WAITING


def _import_target(seam: Seam) -> str:
    """Imports the seam's module, so that it is laid.

    Returns:
        Why there is none: the release, or an extra of vLLM's, is not installed.
    """
    missing = ""
    for name in seam.modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            logging.getLogger("vllm.ashutdown").debug("%s: %s", name, error)
            missing = missing or f"not here: {error}"
        else:
            return ""
    return missing
