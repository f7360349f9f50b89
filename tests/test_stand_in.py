"""What stands for a server in campaigns stops like one, and is judged like one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from benchmarks import faults, instants
from tests.stand_in import SHAPES, StandIn
from vllm_ashutdown import settings
from vllm_ashutdown.core.reclaim import Verdict, reclaim


@pytest.mark.parametrize(("shape", "drain"), [("tp2", 0), ("dp2", 5)])
def test_it_has_its_processes_and_leaves_nothing(tmp_path: Path, shape, drain):
    options = ("--shutdown-timeout", str(drain))
    with StandIn(tmp_path, *options, topology=SHAPES[shape]) as one:
        kinds = {name: len(them) for name, them in one.processes_by_kind().items()}
        one.signal(signal.SIGTERM)
        end = one.wait(10)
        assert one.faults(end) == []
        assert end.seconds < 3
        assert one.report.clean
        named = [kind for kind in SHAPES[shape].kinds if kind != "Worker"]
        assert {kind: kinds[kind] for kind in named} == {
            kind: SHAPES[shape].kinds[kind] for kind in named
        }


def test_killed_whole_it_leaves_what_the_next_one_takes_away(tmp_path: Path):
    lists = tmp_path / "lists"
    environment = {settings.STATE_DIRECTORY.name: str(lists)}
    with StandIn(tmp_path, topology=SHAPES["tp2"], environment=environment) as one:
        assert one.wait_for("is up", 10, 2) is not None
        # What it has not come to write down is nobody's: the core has one, each worker.
        until = time.monotonic() + 10
        while "".join(each.read_text() for each in lists.iterdir()).count("psm_") < 3:
            assert time.monotonic() < until
            time.sleep(0.01)
        one.signal_group(signal.SIGKILL)
        one.gone_within(5)
        one.wait(5)
        assert one.leftovers()
        found = reclaim(remove=True, directory=lists).leftovers
        assert found
        assert [each for each in found if each.verdict is not Verdict.REMOVED] == []
        assert one.leftovers() == []


def test_a_few_faults_and_instants(capsys: pytest.CaptureFixture[str]):
    assert faults.main(["--stand-in", "--runs", "2", "--seed", "3"]) == 0
    assert "2 of 2 as promised" in capsys.readouterr().out
    assert instants.main(["--stand-in", "--runs", "2", "--signals", "2"]) == 0
    assert "2 of 2 kept" in capsys.readouterr().out


def test_what_is_left_is_told(tmp_path: Path):
    with StandIn(tmp_path, topology=SHAPES["api2"]) as one:
        (one.temporary / "left").touch()
        one.signal(signal.SIGTERM)
        found = one.faults(one.wait(10))
        assert any("left" in line for line in found), os.linesep.join(found)
