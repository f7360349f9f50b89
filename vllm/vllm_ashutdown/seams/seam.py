"""The record of one touched vLLM attribute, and the guard in front of it.

Every process of vLLM's loads this, so these are structs: such a class is made in a
sixth of the time of a named tuple, and in a fortieth of a dataclass's.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterable
from types import CodeType
from typing import Any

from msgspec import Struct


class How(enum.StrEnum):
    """What is done to the attribute, from the gentlest on."""

    ADD = "add"
    """A new attribute; nothing of vLLM's is touched."""
    WRAP = "wrap"
    """vLLM's own runs inside ours."""
    REPLACE = "replace"
    """Ours runs instead of vLLM's."""


class State(enum.StrEnum):
    """What became of a seam in this process."""

    WAITING = "waiting"
    """Its module is not imported yet; it is laid when that happens."""
    LAID = "laid"
    SKIPPED = "skipped"
    """Its guard does not match; vLLM keeps its own behaviour there."""


class Guard(Struct, frozen=True):
    """What must be true of vLLM's attribute for ours to fit in its place.

    Attributes:
        parameters: Names that its signature must have, in this order; others
            may stand between and behind them.
        reads: Names that its body must use, nested functions included. A body
            that no longer does has changed its ways.
    """

    parameters: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()

    def mismatch(self, attribute: Any) -> str | None:
        """Why ``attribute`` does not fit, or ``None`` if it does."""
        function = inspect.unwrap(attribute)
        names: list[str] = []
        if self.parameters:
            try:
                names = list(inspect.signature(function).parameters)
            except (TypeError, ValueError) as error:
                return f"its signature cannot be read ({error})"
        return self.mismatch_of(names, getattr(function, "__code__", None))

    def mismatch_of(self, names: Iterable[str], code: CodeType | None) -> str | None:
        """The same for what takes ``names`` and has ``code`` as its body."""
        names = list(names)
        here = iter(names)
        for wanted in self.parameters:
            if wanted not in here:  # consumes: the order counts
                return f"it takes ({', '.join(names)}), without {wanted!r}"
        if self.reads:
            if code is None:
                return "it is not a Python function"
            missing = sorted(set(self.reads) - _names(code))
            if missing:
                return f"it no longer uses {', '.join(missing)}"
        return None


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names) | set(code.co_varnames) | set(code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
        elif isinstance(constant, str):
            names.add(constant)  # as in getattr(self, "output_handler", None)
    return names


class Seam(Struct, frozen=True):
    """One touched vLLM attribute.

    Attributes:
        name: Short and unique; what ``needs`` and messages say.
        targets: ``module:attribute`` in each supported release, newest first;
            the first whose module exists is the one.
        how: What is done to it.
        make: ``module:function`` of ours that takes vLLM's attribute (``None``
            for :attr:`How.ADD`) and gives back what takes its place. A name,
            so that no process imports an adapter it has no use for.
        why: What goes wrong without it.
        reference: The public issue or pull request about that.
        until: The condition on which this record can go.
        guard: What must be true of vLLM's attribute.
        needs: Names of seams without which this one would do harm.
        since: The first supported release that has such a thing at all.
    """

    name: str
    targets: tuple[str, ...]
    how: How
    make: str
    why: str
    reference: str
    until: str
    guard: Guard = Guard()
    needs: tuple[str, ...] = ()
    since: str = "0.28"

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of the targets."""
        return tuple(target.partition(":")[0] for target in self.targets)
