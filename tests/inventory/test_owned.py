from __future__ import annotations

import os
import threading

import pytest

from tests.inventory.planted import child
from tests.inventory.sides import needs_linux
from vllm_ashutdown.inventory import Baseline, Owned, family, take_baseline
from vllm_ashutdown.inventory import owned as owned_module
from vllm_ashutdown.inventory import view as view_module

pytestmark = needs_linux


@pytest.mark.parametrize(
    ("name", "state", "threads", "start"),
    [
        ("python", "S", 1, 2.5),
        ("python", "Z", 1, None),
        ("python", "X", 0, None),
        ("python", "Z", 2, 2.5),
        (") Z 1 (", "S", 1, 2.5),
    ],
)
def test_how_the_kernel_tells_of_a_process(
    name, state, threads, start, monkeypatch, tmp_path
):
    ticks = int(2.5 * os.sysconf("SC_CLK_TCK"))
    fields = ["0"] * 16 + [str(threads), "0", str(ticks), "0", "0"]
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 ({name}) {state} {' '.join(fields)}")
    monkeypatch.setattr(view_module, "PROC", tmp_path)
    assert owned_module.start_of(7) == start
    assert owned_module.start_of(8) is None


def test_a_family_is_a_process_and_all_below_it():
    program = (
        "import subprocess, sys\n"
        "below = subprocess.Popen([sys.executable, '-IS', '-c',"
        " 'import sys; sys.stdin.read()'], stdin=subprocess.PIPE)\n"
        "print(below.pid, flush=True)"
    )
    with child(program) as (process, (below,)):
        members = family(process.pid)
        assert {member.pid for member in members} == {process.pid, int(below)}
        assert all(member.is_alive for member in members)
        assert all(member.name for member in members)
    assert family(process.pid) == ()


def test_psutil_agrees_on_what_is_gone():
    start_by_psutil = owned_module._start_by_psutil
    with child() as (process, _):
        start = start_by_psutil(process.pid)
        assert start is not None
        assert start_by_psutil(process.pid) == start
        os.kill(process.pid, 9)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert start_by_psutil(process.pid) is None
    assert start_by_psutil(process.pid) is None


def test_a_baseline_has_what_was_there(segment):
    baseline = take_baseline()
    assert segment in baseline.memory
    assert threading.get_native_id() in baseline.threads
    assert Baseline() == Owned().baseline
