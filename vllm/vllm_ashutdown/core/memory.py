"""Memory of a process that is about to end, given back by all its processors at once.

The kernel takes the memory of a process that ends back on one of them, page by page:
a tenth of a second and more for each gigabyte, and a cache may have hundreds.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Iterable
from itertools import chain
from queue import Empty, SimpleQueue

MANY_BYTES = 1 << 28
"""Below this a thread more costs what it saves."""

PIECE_BYTES = 1 << 26
"""What one thread takes at a time, so that all are done at the same time."""

MOST_THREADS = 16
"""The kernel's own locks make more of them useless."""

Span = tuple[int, int]
"""Address and length in bytes."""


def give_back(spans: Iterable[Span]) -> int:
    """Gives the pages that lie wholly in ``spans`` back to the kernel.

    What was in them is lost: zeros, or the file's own bytes, are there afterwards.
    Only for a process that looks at it no more. Never raises; what the kernel will not
    take (pinned for a device, say) it takes when the process ends.

    Returns:
        The bytes that were offered; 0 if they are too few to be worth it, or where the
        system is not Linux.
    """
    whole = [span for span in map(_whole_pages, set(spans)) if span[1] > 0]
    total = sum(length for _, length in whole)
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if advice is None or total < MANY_BYTES:
        return 0
    pieces: SimpleQueue[Span] = SimpleQueue()
    for piece in chain.from_iterable(map(_pieces, whole)):
        pieces.put(piece)
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def work() -> None:
        while True:
            try:
                address, length = pieces.get_nowait()
            except Empty:
                return
            madvise(address, length, advice)  # ctypes lets go of the GIL for it

    threads = [
        threading.Thread(target=work, name="vllm-ashutdown-memory", daemon=True)
        for _ in range(min(len(os.sched_getaffinity(0)), MOST_THREADS) - 1)
    ]
    begun = []
    for thread in threads:
        try:
            thread.start()
        except RuntimeError:  # no more of them are to be had
            break
        begun.append(thread)
    work()
    for thread in begun:
        thread.join()
    return total


def _whole_pages(span: Span) -> Span:
    address, length = span
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + length) // mmap.PAGESIZE * mmap.PAGESIZE
    return begin, end - begin


def _pieces(span: Span) -> Iterable[Span]:
    address, length = span
    for begin in range(0, length, PIECE_BYTES):
        yield address + begin, min(PIECE_BYTES, length - begin)
