"""vllm.distributed.device_communicators.cpu_communicator: tensor parallel on a CPU.

Each rank makes shared memory in C++ and maps that of the others. The destructor that
unlinks it belongs to a global of the library, so it runs when the interpreter's own
process ends in C's way, and neither at an ``os._exit`` nor at a kill. Python's
resource tracker knows nothing of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..core.files import Kind, ledger, memory_path


def make_init_cpu_shm(original: Callable[..., int]) -> Callable[..., int]:
    """``_CPUSHMDistributed._init_cpu_shm``.

    It ends with a barrier behind the moment at which each rank has mapped the memory
    of all: from there on no name is needed.
    """

    @functools.wraps(original)
    def init_cpu_shm(self: Any) -> int:
        # The name is C++'s: the group's and the rank in it (csrc/cpu/shm.cpp).
        path = memory_path(f"{self.group_name}_{self.communicator.rank}")
        ledger.remember(path, Kind.SHARED_MEMORY)
        handle = original(self)
        ledger.remove([path])
        return handle

    return init_cpu_shm
