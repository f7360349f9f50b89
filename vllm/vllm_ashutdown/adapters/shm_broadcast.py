"""vllm.distributed.device_communicators.shm_broadcast: queues between core and workers.

A queue's ring buffer is shared memory of 160 to 240 MiB with a name, which its maker
unlinks in a destructor: one that an ``os._exit`` or a kill never runs. The name has
done its work as soon as every reader has mapped the memory. It goes at that moment,
and from then on no way to end can leave it behind.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from ..core.files import ledger, memory_path


def make_init(original: Callable[..., None]) -> Callable[..., None]:
    """``ShmRingBuffer.__init__``."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.is_creator:
            ledger.remember_memory(self.shared_memory)

    return init


def make_wait_until_ready(original: Callable[..., None]) -> Callable[..., None]:
    """``MessageQueue.wait_until_ready``: at its end every reader has subscribed.

    A reader maps the memory before it subscribes, and the writer waits for as many
    as there will ever be.
    """

    @functools.wraps(original)
    def wait_until_ready(self: Any) -> None:
        original(self)
        if self._is_writer:
            # The arena came with 0.32.
            parts = (self.buffer, getattr(self, "tensor_arena", None))
            ledger.remove(
                memory_path(part.shared_memory.name)
                for part in parts
                if part is not None
            )

    return wait_until_ready


def make_shutdown(original: Callable[..., None]) -> Callable[..., None]:
    """``MessageQueue.shutdown``, which two threads of a worker call as it leaves.

    The one that watches the core wakes the main thread by a flag and then by a message
    on a socket; the main thread may see the flag first, and on its way out sends on
    the same socket. ZMQ's sockets are for one thread at a time.
    """

    @functools.wraps(original)
    def shutdown(self: Any) -> None:
        # Made here and not with the queue, which may have been made before us.
        with vars(self).setdefault("_ashutdown_lock", threading.Lock()):
            original(self)

    return shutdown
