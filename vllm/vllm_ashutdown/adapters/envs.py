"""vllm.envs: vLLM knows our variables, so it does not warn of them at each start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import settings


def make_environment_variables(
    original: dict[str, Callable[[], Any]],
) -> dict[str, Callable[[], Any]]:
    """``environment_variables``: the same dict, with ours in it."""
    for variable in settings.VARIABLES:
        original.setdefault(variable.name, variable.read_or_default)
    return original
