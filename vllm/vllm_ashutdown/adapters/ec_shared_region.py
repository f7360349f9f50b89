"""vllm.distributed.ec_transfer.ec_connector.cpu.ec_shared_region: encoder outputs.

A file in /dev/shm, which its maker unlinks in a ``cleanup()`` that it may not get to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..core.files import Kind, ledger


def make_init(original: Callable[..., None]) -> Callable[..., None]:
    """``ECSharedRegion.__init__``."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self._is_creator:
            ledger.remember(self._mmap_path, Kind.SHARED_MEMORY)

    return init
