"""What to do about a start that fails in a way that is known."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

__all__ = ["advice", "early_warnings"]

_NO_METADATA = "No package metadata was found for vllm"
_UNKNOWN_OPTION = "unrecognized arguments"

_HERE = ("vllm", "python")
"""So begin the names of programs that serve on this machine and see its files."""

_PLACES = ("/", "./", "../", "~")
"""So begins a model that lies on this machine, and none of a hub's."""


def advice(
    command: Sequence[str], lines: Sequence[str], options: Collection[str]
) -> Iterator[str]:
    """One sentence for each cause that is seen.

    Args:
        command: The server's.
        lines: Its last words.
        options: This program's own, which a server does not know.
    """
    log = "\n".join(lines)
    if _NO_METADATA in log:
        yield (
            "this vLLM is the CPU build, whose own `vllm serve` stops at once: "
            "start it with `vllm-ashutdown serve`, all arguments are the same"
        )
    if _UNKNOWN_OPTION in log:
        yield from _misplaced(command, options)
    yield from _missing_model(command)


def early_warnings(command: Sequence[str], options: Collection[str]) -> Iterator[str]:
    """What will probably go wrong with it, before a minute is lost; see :func:`advice`.

    A container or another machine may have the model, if it is them that is started.
    """
    yield from _misplaced(command, options)
    if Path(command[0]).name.startswith(_HERE):
        yield from _missing_model(command)


def _misplaced(command: Sequence[str], options: Collection[str]) -> Iterator[str]:
    for name in dict.fromkeys(word.partition("=")[0] for word in command):
        if name in options:
            yield (
                f"{name} behind the -- goes to the server: if it is meant for the "
                "audit, write it before the --"
            )


def _missing_model(command: Sequence[str]) -> Iterator[str]:
    model = _model_of(command)
    if model.startswith(_PLACES) and not Path(model).exists():
        yield f"there is no {model} on this machine: check the path of the model"


def _model_of(command: Sequence[str]) -> str:
    """The model in a ``vllm serve``, or nothing where that cannot be seen."""
    for word, after in zip(command, [*command[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == "--model":
            return value if equals else after
        if word == "serve" and after and not after.startswith("-"):
            return after
    return ""
