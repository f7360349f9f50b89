from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from tests.inventory.planted import MAPPED, SHM, child
from tests.inventory.sides import found, needs_linux, sees, spares
from vllm_ashutdown.inventory import Owned, View, take_baseline

pytestmark = needs_linux


@pytest.fixture
def semaphore():
    """The name of a semaphore that processes of a spawning program share."""
    made = multiprocessing.get_context("spawn").Semaphore()
    yield made._semlock.name.removeprefix("/")
    del made
    gc.collect()


@sees("shared memory")
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_segment_that_was_recorded(segment, slash):
    assert found("shared memory", memory={slash + segment}) == {segment}
    assert found("semaphores", memory={slash + segment}) == set()


@spares("shared memory")
def test_a_segment_of_someone_else(segment):
    with child(MAPPED.format(path=f"{SHM}/{segment}")):
        assert found("shared memory", memory={"psm_gone"}) == set()


@sees("shared memory")
def test_a_segment_that_an_owned_process_maps(segment):
    with child(MAPPED.format(path=f"{SHM}/{segment}")) as (process, _):
        assert f"{SHM}/{segment}" not in View(Owned()).links(process.pid).values()
        assert found("shared memory", processes=(process,)) == {segment}
    assert found("shared memory", processes=(process,)) == set()


@sees("shared memory")
def test_a_segment_that_an_owned_process_has_open(segment):
    with child(f"file = open('{SHM}/{segment}')") as (process, _):
        assert found("shared memory", processes=(process,)) == {segment}


@spares("shared memory")
def test_a_segment_from_before_that_an_owned_process_maps(segment):
    before = take_baseline()
    assert segment in before.memory
    with child(MAPPED.format(path=f"{SHM}/{segment}")) as (process, _):
        owned = {"processes": (process,), "baseline": before}
        assert found("shared memory", **owned) == set()


@sees("shared memory")
def test_a_segment_without_a_name_that_an_owned_process_maps():
    segment = SharedMemory(create=True, size=4096)
    segment.close()
    with child(MAPPED.format(path=f"{SHM}/{segment.name}")) as (process, _):
        segment.unlink()
        items = found("shared memory", processes=(process,))
        assert items == {f"{segment.name} (unlinked, held by pid {process.pid})"}


@sees("shared memory")
def test_a_segment_without_a_name_that_this_process_maps():
    segment = SharedMemory(create=True, size=4096)
    segment.unlink()
    here = f"{segment.name} (unlinked, held by pid {os.getpid()})"
    assert found("shared memory", memory={segment.name}) == {here}
    assert found("shared memory") == set(), "the host may map what it likes"
    segment.close()
    assert found("shared memory", memory={segment.name}) == set()


@spares("shared memory")
def test_what_else_a_process_has_open():
    setup = "import os; made = os.memfd_create('psm_x'), os.pipe(), open('/dev/zero')"
    with child(setup) as (process, _):
        view = View(Owned(processes=(process,)))
        assert len(view.links(process.pid)) >= 7
        assert view.held(process.pid) == set()


@spares("shared memory")
def test_a_file_that_somebody_keeps_in_a_folder_there():
    with tempfile.TemporaryDirectory(dir=SHM) as folder:
        path = Path(folder, "kernel.so")
        path.write_bytes(bytes(4096))
        with child(MAPPED.format(path=str(path))) as (process, _):
            assert found("shared memory", processes=(process,)) == set()


@sees("semaphores")
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_semaphore_that_was_recorded(semaphore, slash):
    assert found("semaphores", semaphores={slash + semaphore}) == {semaphore}
    assert found("shared memory", memory={semaphore}) == set()


@sees("semaphores")
def test_a_semaphore_that_an_owned_process_maps(semaphore):
    with child(MAPPED.format(path=f"{SHM}/sem.{semaphore}")) as (process, _):
        assert found("semaphores", processes=(process,)) == {semaphore}
        assert found("shared memory", processes=(process,)) == set()


@sees("semaphores")
def test_a_semaphore_that_its_killed_maker_has_left(request):
    name = f"inv-{os.getpid()}"
    request.addfinalizer(lambda: (SHM / f"sem.{name}").unlink(missing_ok=True))
    make = f"import _multiprocessing as m\nmade = m.SemLock(1, 1, 1, '/{name}', False)"
    with child(make) as (process, _):
        # Its maker maps it under another name, which is gone.
        assert f"sem.{name}" not in Path(f"/proc/{process.pid}/maps").read_text()
        assert found("semaphores", processes=(process,)) == {name}
        os.kill(process.pid, 9)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert found("semaphores", semaphores={name}) == {name}
        (SHM / f"sem.{name}").unlink()
    assert found("semaphores", semaphores={name}) == set()


@spares("semaphores")
def test_a_semaphore_of_someone_else(semaphore):
    before = take_baseline()
    with child(MAPPED.format(path=f"{SHM}/sem.{semaphore}")) as (process, _):
        assert found("semaphores", semaphores={"mp-gone"}) == set()
        owned = {"processes": (process,), "baseline": before}
        assert found("semaphores", **owned) == set()
