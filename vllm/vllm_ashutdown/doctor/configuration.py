"""The settings in force, and those that mean nothing."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path

from .. import settings
from ..core.claims import is_ours, place
from ..errors import InvalidSettingError
from .finding import Finding, Level

PREFIX = "VLLM_ASHUTDOWN"


def configuration() -> Iterator[Finding]:
    """Each setting; each variable that looks like one and is none; their places."""
    for variable in settings.VARIABLES:
        yield _setting(variable)
    known = [variable.name for variable in settings.VARIABLES]
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            yield Finding(
                name,
                Level.WARNING,
                "there is no such setting",
                f"Is {close[0]} meant?" if close else "Unset it.",
            )
    yield from _report()
    yield _state()


def _setting(variable: settings.Variable) -> Finding:
    text = os.environ.get(variable.name, "").strip()
    try:
        value = variable.read()
    except InvalidSettingError as error:
        default = variable.default
        remedy = f"Until it is mended the default holds: {_said(default)}."
        return Finding(variable.name, Level.WARNING, str(error), remedy)
    words = _said(value)
    return Finding(variable.name, Level.OK, words if text else f"{words} (default)")


def _said(value: float | bool | str) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value) or "not set"


def _report() -> Iterator[Finding]:
    path = settings.report_path()
    if not path:
        return
    folder = Path(path).absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        yield Finding(
            "report",
            Level.WARNING,
            f"{folder} is no directory that this user can write to",
            "No report would be written: make it, or name another one.",
        )


def _state() -> Finding:
    directory = place()
    parent = next(one for one in (directory, *directory.parents) if one.exists())
    if directory.exists() and not is_ours(directory):
        found = f"{directory} is not this user's alone"
    elif not os.access(parent, os.W_OK):
        found = f"{parent} cannot be written to"
    else:
        return Finding("state directory", Level.OK, str(directory))
    return Finding(
        "state directory",
        Level.WARNING,
        found,
        "What a kill leaves would stay. "
        f"{settings.STATE_DIRECTORY.name} names another one.",
    )
