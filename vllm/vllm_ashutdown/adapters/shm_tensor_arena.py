"""vllm.distributed.device_communicators.shm_tensor_arena: large tensors for workers.

Its maker unlinks it in a destructor, and not even there if a tensor is still in use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..core.files import ledger


def make_init(original: Callable[..., None]) -> Callable[..., None]:
    """``ShmTensorArena.__init__``."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.is_creator:
            ledger.remember_memory(self.shared_memory)

    return init
