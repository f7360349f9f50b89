"""The benchmark of schedules: how it counts, and that it runs."""

from __future__ import annotations

import json

from benchmarks.race import findings, main
from tests.explorer import Run


def test_what_is_counted():
    good = Run(schedule="a")
    late = Run(schedule="b", waiting=["r1", "r2"])
    bad = Run(schedule="b", false_errors=["failed"], doubled=["r"], wrong=["r: abort"])
    found = findings("x", [(5, good), (6, late), (7, bad), (8, good)])
    assert (found.schedules, found.distinct, found.faulty) == (4, 2, 2)
    assert list(found.faults.values()) == [1, 1, 1, 2]
    assert (found.first, found.example) == (6, "still waiting: r1")
    assert found.per_10_000(found.faulty) == "5,000"


def test_without_a_fault_there_is_nothing_to_see_again():
    found = findings("x", [(1, Run(schedule="a"))])
    assert (found.faulty, found.first, found.example) == (0, None, "")


def test_a_few_schedules_of_each(tmp_path, capsys):
    file = tmp_path / "found.json"
    code = main(["--schedules", "8", "--stock", "4", "--json", str(file)])
    stock, ours = json.loads(file.read_text())["found"]
    assert code == 0
    assert (ours["schedules"], ours["faulty"]) == (8, 0)
    assert stock["faulty"] > 0
    assert "faulty schedules" in capsys.readouterr().out
