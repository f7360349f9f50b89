"""The benchmark of many requests: a small one, and what it would call broken."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from benchmarks.figures import Line
from benchmarks.processor import Stopwatch
from benchmarks.scale import Run, Turns, broken_by, line_of, main, peak_memory

GOOD = Run(1000, 0.1, 0.0, 0.005, 1000, ())


def test_a_small_one_runs_and_is_written_down(tmp_path, capsys):
    found = tmp_path / "found.json"
    main(["--sizes", "1", "20", "60", "--runs", "2", "--json", str(found)])
    said = json.loads(found.read_text())["found"]
    assert len(said["runs"]) == 9
    assert all(run["told"] == run["size"] for run in said["runs"])
    assert [run["peak"] > 0 for run in said["runs"]] == [False] * 6 + [True] * 3
    assert said["line"]["slope"] == pytest.approx(0, abs=0.01)
    assert "R²" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("run", "promise"),
    [
        (replace(GOOD, seconds=1.01), "1000 requests took 1.010 s"),
        (replace(GOOD, hold=0.021), "1000 requests held the loop for 21.0 ms"),
        (replace(GOOD, told=998), "2 of 1000 callers were not told"),
        (replace(GOOD, left=("a socket",)), "with 1000 requests: a socket"),
    ],
)
def test_each_promise_is_kept_or_is_called_broken(run, promise):
    assert broken_by([GOOD], None) == []
    assert broken_by([run], None) == [promise]


def test_a_run_whose_memory_is_traced_does_not_count_for_time():
    slow = replace(GOOD, seconds=9.0, hold=1.0, peak=1)
    assert broken_by([GOOD, slow], None) == []
    assert broken_by([GOOD, replace(slow, told=0)], None) != []


def test_a_time_that_is_not_linear_is_called_broken():
    sizes = (1, 10, 100, 1000)
    linear = [replace(GOOD, size=n, told=n, seconds=0.001 * n) for n in sizes]
    assert broken_by([], line_of(linear)) == []
    bent = Line.through([(1, 1), (2, 4), (3, 2), (4, 8)])
    assert broken_by([], bent) == [f"the time is not linear: R² {bent.r_squared:.4f}"]
    assert line_of(linear[:2]) is None


def test_the_line_is_through_the_fastest():
    sizes = (1, 2, 3)
    fast = [replace(GOOD, size=n, seconds=0.1 * n) for n in sizes]
    slow = [replace(one, seconds=one.seconds + 5) for one in fast[1:]]
    line = line_of(fast + slow)
    assert line is not None
    assert line.slope == pytest.approx(0.1)
    assert line.r_squared == pytest.approx(1)


async def test_a_turn_that_is_held_is_seen():
    with Stopwatch() as watch:
        async with Turns(watch) as turns:
            pass
        assert turns.longest < 0.05
        async with Turns(watch) as turns:
            time.sleep(0.06)  # noqa: ASYNC251 - it is what should be seen
        assert turns.longest >= 0.05


def test_memory_is_the_most_there_was_and_not_what_is_left():
    with peak_memory(True) as peak:
        taken = bytearray(1 << 20)
        del taken
    assert peak[0] >= 1 << 20
    with peak_memory(False) as peak:
        pass
    assert peak == [0]
