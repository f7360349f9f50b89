"""vllm.entrypoints.launchers.api_server.entry: who answers for signals meanwhile."""

from __future__ import annotations

from types import ModuleType

from ..starting import StartSignals


def make_signal(original: ModuleType) -> ModuleType:
    """``signal``, for the one API server."""
    return StartSignals()
