"""A clock that stands still while others have the processor."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from benchmarks import processor
from benchmarks.processor import Stopwatch

linux = pytest.mark.skipif(
    not processor._SCHEDSTAT.exists(), reason="the kernel does not tell"
)


def test_what_a_thread_sleeps_counts():
    with Stopwatch() as watch:
        began = watch.read()
        time.sleep(0.05)
        assert watch.read() - began >= 0.045


@linux
def test_what_it_waits_for_a_processor_does_not():
    own = os.sched_getaffinity(0)
    one = {min(own)}
    program = f"import os; os.sched_setaffinity(0, {one}); print(flush=True)"
    rival = subprocess.Popen(
        [sys.executable, "-c", f"{program}\nwhile True: pass"], stdout=subprocess.PIPE
    )
    assert rival.stdout is not None
    rival.stdout.readline()  # it is on the same processor now
    try:
        os.sched_setaffinity(0, one)
        with Stopwatch() as watch:
            began, at, queued = watch.read(), time.perf_counter(), watch.queued()
            until = time.thread_time() + 0.1
            while time.thread_time() < until:
                pass
            counted, passed = watch.read() - began, time.perf_counter() - at
            waited = watch.queued() - queued
    finally:
        os.sched_setaffinity(0, own)
        rival.kill()
        rival.communicate()
    assert waited > 0.02
    assert counted == pytest.approx(passed - waited, abs=0.005)
    assert counted < passed


def test_where_the_kernel_does_not_tell_all_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(processor, "_SCHEDSTAT", tmp_path / "nothing")
    with Stopwatch() as watch:
        assert watch.queued() == 0.0
        assert watch.read() == pytest.approx(time.perf_counter(), abs=1)
