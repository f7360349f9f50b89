"""vllm.v1.kv_offload.cpu.shared_offload_region: KV blocks in the host's memory.

The worker that makes the file in /dev/shm unlinks it once all have mapped it, or, where
there is no barrier to know that by, in a ``cleanup()`` that a worker may not get to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..core.files import Kind, ledger


def make_init(original: Callable[..., None]) -> Callable[..., None]:
    """``SharedOffloadRegion.__init__``."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self._creator:  # no more where it is unlinked by now
            ledger.remember(self.mmap_path, Kind.SHARED_MEMORY)

    return init
