from __future__ import annotations

import os

from msgspec import structs

from tests.inventory.planted import child
from tests.inventory.sides import found, needs_linux, sees, spares
from tests.life import MAIN_THREAD_ENDS
from vllm_ashutdown.inventory import Process

pytestmark = needs_linux


@sees("processes")
def test_a_child_that_lives():
    with child() as (process, _):
        items = found("processes", processes=(process,))
        assert items == {f"Worker (pid {process.pid})"}
    assert found("processes", processes=(process,)) == set()


@spares("processes")
def test_a_process_that_nobody_gave():
    with child(), child() as (process, _):
        assert found("processes", processes=(process,)) == {str(process)}


@spares("processes")
def test_a_zombie_that_awaits_its_parent_is_gone():
    with child() as (process, _):
        os.kill(process.pid, 9)
        # It stays a zombie: this tells of its end without taking it away.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        os.kill(process.pid, 0)
        assert found("processes", processes=(process,)) == set()
        assert Process.of(process.pid) is None


@sees("processes")
def test_a_zombie_whose_other_threads_run_on_is_not_gone():
    with child(MAIN_THREAD_ENDS) as (process, _):
        assert found("processes", processes=(process,)) == {str(process)}


@spares("processes")
def test_a_pid_that_was_given_to_another_process():
    with child() as (process, _):
        recycled = structs.replace(process, start=process.start - 1)
        assert recycled.is_replaced
        assert not process.is_replaced
        assert found("processes", processes=(recycled,)) == set()
