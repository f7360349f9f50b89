"""The process groups of ``torch.distributed`` in this process."""

from __future__ import annotations

import sys
from typing import Any


def initialised_groups() -> frozenset[str]:
    """One item for each group: ``default (gloo, rank 0 of 2)``, ``group 1``.

    torch is not imported for it. Where it is not there, it has no groups.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    # It may be on its way in, or built without them.
    is_initialised = getattr(distributed, "is_initialized", None)
    if is_initialised is None or not is_initialised():
        return frozenset()
    rank, size = distributed.get_rank(), distributed.get_world_size()
    default = f"default ({distributed.get_backend()}, rank {rank} of {size})"
    # torch has no public list of them. One release without this one has the
    # default group to show, and that goes last.
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    names = dict(getattr(getattr(c10d, "_world", None), "pg_names", None) or {})
    main = getattr(getattr(c10d, "GroupMember", None), "WORLD", None)
    others = (name for group, name in names.items() if group is not main)
    return frozenset({default, *(f"group {name}" for name in others)})
