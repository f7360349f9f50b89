"""vllm.distributed.device_communicators.shm_object_storage: the multimodal cache.

The API server makes it, under a name that every worker opens. Its maker's ``close()``
unlinks it, which the renderer calls, or nobody.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..core.files import ledger


def make_init(original: Callable[..., None]) -> Callable[..., None]:
    """``SingleWriterShmRingBuffer.__init__``."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.is_writer:
            ledger.remember_memory(self.shared_memory)

    return init
