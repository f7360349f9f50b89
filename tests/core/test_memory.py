"""Memory is given back by all processors, and none but what was named."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_ashutdown.core import memory
from vllm_ashutdown.core.memory import Span, give_back

PAGE = mmap.PAGESIZE
PAGES = 64


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[mmap.mmap, int]]:
    """Pages full of ones, and where they begin; few are enough to be worth it."""
    monkeypatch.setattr(memory, "MANY_BYTES", 4 * PAGE)
    monkeypatch.setattr(memory, "PIECE_BYTES", 3 * PAGE)
    held = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held.write(b"\1" * len(held))
    view = ctypes.c_char.from_buffer(held)
    yield held, ctypes.addressof(view)
    del view
    held.close()


def test_all_that_is_named_goes_and_not_a_byte_beside_it(pages):
    held, begin = pages
    assert (
        give_back([(begin + PAGE, 50 * PAGE), (begin + 60 * PAGE, PAGE)]) == 51 * PAGE
    )
    left = [held[number * PAGE] for number in range(PAGES)]
    assert left == [1] + [0] * 50 + [1] * 9 + [0] + [1] * 3


def test_a_page_that_is_only_partly_in_it_stays(pages):
    held, begin = pages
    assert give_back([(begin + 1, 10 * PAGE)]) == 9 * PAGE
    assert [held[0], held[PAGE], held[10 * PAGE]] == [1, 0, 1]
    assert give_back([(begin + 1, PAGE)]) == 0


def test_named_twice_it_counts_once(pages):
    _, begin = pages
    span: Span = (begin, 8 * PAGE)
    assert give_back([span, span]) == 8 * PAGE


def test_a_little_is_left_to_the_processs_end(pages):
    held, begin = pages
    assert give_back([(begin, 3 * PAGE)]) == 0
    assert held[0] == 1


def test_what_the_kernel_will_not_take_harms_nobody(pages):
    held, begin = pages
    hole = 1 << 30  # nothing is mapped there
    assert give_back([(hole, 8 * PAGE), (begin, 8 * PAGE)]) == 16 * PAGE
    assert held[0] == 0


def test_a_thread_for_each_processor_and_none_of_them_left(pages, monkeypatch):
    begun: list[str] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        begun.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)))
    before = threading.active_count()
    give_back([(pages[1], 50 * PAGE)])
    assert begun == ["vllm-ashutdown-memory"] * 2
    assert threading.active_count() == before


def test_where_no_threads_are_to_be_had_it_is_done_by_one(pages, monkeypatch):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    held, begin = pages
    assert give_back([(begin, 8 * PAGE)]) == 8 * PAGE
    assert held[0] == 0


def test_the_memory_is_really_back():
    held = mmap.mmap(-1, memory.MANY_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held.write(b"\1" * len(held))
    view = ctypes.c_char.from_buffer(held)
    before = resident()
    give_back([(ctypes.addressof(view), len(held))])
    assert before - resident() > 0.9 * memory.MANY_BYTES
    del view
    held.close()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
