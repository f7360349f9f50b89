"""What a process of the tree is there for; it decides when in a stop its turn comes."""

from __future__ import annotations

import enum


class Part(enum.StrEnum):
    """From those that are stopped first to those that the others need until then."""

    SERVER = "API server"
    CORE = "engine core"
    COORDINATOR = "coordinator"
    WORKER = "worker"
    """Its core stops it."""
