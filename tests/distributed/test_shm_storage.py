"""The multimodal cache and the arena for tensors are their makers' to unlink."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from vllm.distributed.device_communicators.shm_object_storage import (
    SingleWriterShmRingBuffer,
)

from tests.programs import run
from vllm_ashutdown.core.files import ledger, memory_path

NAME = "vllm-ashutdown-test-storage"


def test_the_cache_is_the_writers_and_goes_as_it_is_closed():
    writer = SingleWriterShmRingBuffer(1024, name=NAME, create=True)
    owned = ("shared memory", memory_path(NAME))
    assert owned in ledger.owned()
    reader = SingleWriterShmRingBuffer(1024, name=NAME)
    reader.close()
    assert Path(memory_path(NAME)).exists(), "a reader owns nothing"
    writer.close()
    assert owned not in ledger.owned()
    assert not Path(memory_path(NAME)).exists()


def test_a_cache_that_nobody_closes_goes_with_the_fast_exit():
    code, lines, complaints = run("""
        from vllm.distributed.device_communicators.shm_object_storage import (
            SingleWriterShmRingBuffer,
        )
        kept = SingleWriterShmRingBuffer(1024, create=True)
        tell(memory_path(kept.shared_memory.name))
        fast_exit(0)
    """)
    assert (code, complaints) == (0, "")
    assert not Path(lines[0]).exists()


def test_an_arena_goes_though_a_tensor_in_it_is_in_use():
    arenas = pytest.importorskip(
        "vllm.distributed.device_communicators.shm_tensor_arena", reason="since 0.32"
    )
    arena = arenas.ShmTensorArena(1, slot_bytes=1024, n_slots=2)
    path = memory_path(arena.shared_memory.name)
    tensor = torch.frombuffer(arena.shared_memory.buf, dtype=torch.uint8)
    ledger.remove([path])
    assert not Path(path).exists()
    tensor.fill_(7)
    assert arena.shared_memory.buf[0] == 7
