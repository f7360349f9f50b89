"""Files in /dev/shm that workers share: whoever made one removes it, and no other."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import pytest
from vllm.distributed.ec_transfer.ec_connector.cpu.ec_shared_region import (
    ECSharedRegion,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

from tests.programs import run
from vllm_ashutdown.core.files import ledger

ARGUMENTS: dict[str, dict[str, Any]] = {
    "offload": {
        "num_chunks": 1,
        "rank": 0,
        "kv_bytes_per_chunk": PAGESIZE,
        "cpu_page_size": PAGESIZE,
    },
    "ec": {"num_blocks": 1, "block_size_bytes": PAGESIZE},
}
REGIONS: dict[str, Callable[..., Any]] = {
    "offload": SharedOffloadRegion,
    "ec": ECSharedRegion,
}
each_region = pytest.mark.parametrize("which", REGIONS)


def make(which: str, engine: str, **more: Any) -> tuple[Any, str]:
    region = REGIONS[which](engine, **ARGUMENTS[which], **more)
    return region, f"/dev/shm/vllm_{which}_{engine}.mmap"


def is_owned(path: str) -> bool:
    return ("shared memory", path) in ledger.owned()


@each_region
def test_a_region_is_its_creators_until_it_cleans_up(which, log):
    engine = uuid.uuid4().hex
    region, path = make(which, engine)
    assert is_owned(path)
    ledger.remove([path])
    assert not Path(path).exists()
    joiner_of_another, _ = make(which, engine)  # the name is free again
    assert is_owned(path)
    joiner_of_another.cleanup()
    assert not Path(path).exists()
    ledger.remove([path])
    assert log.text == ""
    region._creator = region._is_creator = False
    region.cleanup()


@each_region
def test_who_joins_owns_nothing(which):
    engine = uuid.uuid4().hex
    region, path = make(which, engine)
    # In a process of its own the note would be missing; here there is one note.
    ledger._owned.pop(path)
    joiner, _ = make(which, engine)
    assert not is_owned(path)
    joiner.cleanup()
    assert Path(path).exists()
    region.cleanup()
    assert not Path(path).exists()


@each_region
def test_a_file_that_another_engine_has_put_there_since_stays(which):
    engine = uuid.uuid4().hex
    region, path = make(which, engine)
    Path(path).unlink()
    Path(path).touch()
    ledger.remove([path])
    assert Path(path).exists()
    region.cleanup()
    Path(path).unlink(missing_ok=True)


def test_a_region_that_all_have_mapped_is_unlinked_by_vllm_and_nobodys():
    parameters = SharedOffloadRegion.__init__.__wrapped__.__code__.co_varnames
    if "barrier" not in parameters:
        pytest.skip("since 0.29")
    region, path = make("offload", uuid.uuid4().hex, barrier=lambda: None)
    assert not Path(path).exists()
    assert not is_owned(path)
    region.cleanup()


@pytest.mark.parametrize("plugin", [True, False])
def test_a_worker_that_does_not_get_to_its_clean_up(plugin):
    engine = uuid.uuid4().hex
    made = "\n".join(
        f"from {region.__module__} import {region.__name__}\n"
        f"{which} = {region.__name__}({engine!r}, **{ARGUMENTS[which]})"
        for which, region in REGIONS.items()
    )
    code, _, complaints = run(f"{made}\nfast_exit(0)", plugin=plugin)
    assert (code, complaints) == (0, "")
    paths = [Path(f"/dev/shm/vllm_{which}_{engine}.mmap") for which in REGIONS]
    assert [path.exists() for path in paths] == [not plugin, not plugin]
    for path in paths:
        path.unlink(missing_ok=True)
