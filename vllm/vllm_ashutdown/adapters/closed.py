"""What takes the place of the parts of an engine once it is closed."""

from __future__ import annotations

from typing import Any, NoReturn

from ..errors import CLOSED
from .exceptions import shutdown_error


class Closed:
    """Whatever is asked of it raises :class:`~vllm_ashutdown.EngineClosedError`.

    So does every method of the engine that needs the part, whichever release it came
    with, and what the part held is free.
    """

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # copy, pickle and the like look for these
            raise AttributeError(name)
        raise shutdown_error(CLOSED)


def part_of(whole: Any, name: str) -> Any:
    """That attribute of ``whole``; ``None`` if it has none, or is closed."""
    part = vars(whole).get(name)
    return None if isinstance(part, Closed) else part


def close_parts(whole: Any, names: tuple[str, ...]) -> None:
    """Takes those attributes of ``whole`` that it has away from it."""
    for name in names:
        if name in vars(whole):
            setattr(whole, name, CLOSED_PART)


CLOSED_PART: Any = Closed()
