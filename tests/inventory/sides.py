"""Both sides of each row: it sees a leak, and it sees only its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.inventory.planted import SHM
from vllm_ashutdown.inventory import PROBES, Owned, View

needs_linux = pytest.mark.skipif(not SHM.is_dir(), reason="needs Linux")

SEES: set[str] = set()
SPARES: set[str] = set()


def sees(row: str) -> Callable:
    """Marks a test in which the probe of ``row`` sees what was planted."""
    SEES.add(row)
    return lambda test: test


def spares(row: str) -> Callable:
    """Marks a test in which there is something, and it is not the instance's."""
    SPARES.add(row)
    return lambda test: test


def found(row: str, **owned: object) -> set[str]:
    (probe,) = (probe for probe in PROBES if probe.row == row)
    return set(probe.look(View(Owned(**owned))))  # type: ignore[arg-type]
