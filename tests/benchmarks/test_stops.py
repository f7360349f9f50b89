"""The benchmark of stops: its plan, its tables, its judgement, and one trial."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import stops, trial
from benchmarks.floor import Floor
from benchmarks.stops import STREAMS, build_parser, main, plan
from benchmarks.trial import (
    ABORT,
    DRAIN,
    FLOOR,
    MODES,
    OURS,
    SHAPES,
    STOCK,
    Case,
    Trial,
    attempt,
)
from tests.clients import TYPED, WHOLE
from tests.server import End

PLAIN = Case("one", ABORT, 8)
GOOD = Trial(PLAIN, OURS, 1, 0, 0.4, 0.41, 0.35, {TYPED: 8})


def planned(*arguments: str) -> list[stops.Step]:
    return list(plan(build_parser().parse_args(arguments)))


def test_a_round_has_each_arm_of_each_case_once():
    steps = planned("--rounds", "2")
    each = 2 * len(SHAPES) * len(STREAMS) * len(MODES)
    assert len(steps) == len(set(steps)) == 2 * each
    assert Counter(arm for _, _, arm in steps) == {STOCK: each, OURS: each}


def test_arms_take_turns_beside_each_other():
    one = ("--shapes", "one", "--streams", "8", "--modes", "abort")
    steps = planned(*one, "--rounds", "4")
    assert [arm for _, _, arm in steps] == [STOCK, OURS, OURS, STOCK] * 2
    assert [turn for turn, _, _ in steps] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_kill_knows_no_mode():
    steps = planned("--floor", "--rounds", "3")
    killed = [case for _, case, arm in steps if arm == FLOOR]
    assert len(killed) == 3 * len(SHAPES) * len(STREAMS)
    assert {case.mode for case in killed} == {ABORT}


def test_parts_are_the_whole_and_keep_arms_together():
    whole = planned("--floor", "--rounds", "3")
    parts = [
        planned("--floor", "--rounds", "3", "--shard", f"{n}/3") for n in (1, 2, 3)
    ]
    assert sorted(map(str, chain(*parts))) == sorted(map(str, whole))
    for part in parts:
        arms = Counter((turn, case) for turn, case, arm in part if arm != FLOOR)
        assert set(arms.values()) == {2}


def test_one_arm_alone():
    steps = planned("--only", "ours", "--rounds", "1")
    assert {arm for _, _, arm in steps} == {OURS}


def run(monkeypatch, made, *arguments: str) -> int:
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setattr(stops, "attempt", made)
    return main([*arguments, "--shapes", "one", "--streams", "8", "--rounds", "2"])


def test_both_are_set_side_by_side(monkeypatch, capsys, tmp_path):
    def made(case: Case, arm: str, turn: int, timeout: int) -> Trial:
        assert timeout == 7
        if arm == STOCK:
            return Trial(case, arm, turn, None, 15.0, broken=["hung"])
        return replace(GOOD, case=case, arm=arm, round=turn, after_last_byte=0.2)

    file = tmp_path / "found.json"
    assert run(monkeypatch, made, "--timeout", "7", "--json", str(file)) == 0
    said = capsys.readouterr().out
    assert "1/8, round 1: abort, 8 streams, one server, stock: 15.000 s, hung" in said
    assert "2 of 2" in said
    assert "16 typed 503" in said
    assert "4 of 4 stops of ours kept every promise" in said
    assert "and stock's hung in each of 2 runs" in said
    trials = [Trial.from_json(one) for one in json.loads(file.read_text())["found"]]
    assert len(trials) == 8
    assert trials[0].hung
    assert trials[-1].counts


@pytest.mark.parametrize(("arm", "code"), [(STOCK, 0), (OURS, 1)])
def test_only_ours_is_held_to_its_promises(arm, code, monkeypatch):
    def made(case: Case, who: str, turn: int, timeout: int) -> Trial:
        broken = ["1 error lines"] if who == arm else []
        return replace(GOOD, case=case, arm=who, round=turn, broken=broken)

    assert run(monkeypatch, made) == code


def test_what_an_interrupted_one_has_found_is_shown(monkeypatch, capsys):
    def made(case: Case, arm: str, turn: int, timeout: int) -> Trial:
        if turn == 2:
            raise KeyboardInterrupt
        return replace(GOOD, case=case, arm=arm, round=turn)

    assert run(monkeypatch, made) == 1
    assert "interrupted after 4 of 8" in capsys.readouterr().out


# -- one trial -------------------------------------------------------------------------


class FakeServer:
    """A server that is over as soon as it is signalled, and says what it is told to."""

    address = None
    errors: Sequence[str] = ()
    end = End(0, 0.4, 100.4)
    report_path = Path(__file__)  # it has written one
    report = SimpleNamespace(problems=())

    def __init__(self, directory, *options, topology, environment):
        self.options, self.environment = options, environment
        self.brake = SimpleNamespace(pull=lambda: None, release=lambda: None)
        self.watch = SimpleNamespace(look=lambda: None, processes={})
        type(self).last = self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def signal(self, number):
        pass

    def wait(self, seconds):
        return self.end

    def gone_within(self, seconds):
        return 0.45, []

    def error_lines(self):
        return list(self.errors)

    def leftovers(self):
        return []


class FakeClients:
    ends = TYPED

    def __init__(self, address):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def raw_stream(self, path, start, tokens):
        return start

    @contextmanager
    def flowing(self, *calls):
        assert len(set(calls)) == len(calls), "each stream has a prompt of its own"
        yield [SimpleNamespace(end=self.ends, last_byte_at=100.1) for _ in calls]


@pytest.fixture
def fakes(monkeypatch):
    class Server(FakeServer):
        last: FakeServer

    class Clients(FakeClients):
        pass

    monkeypatch.setattr(trial, "Server", Server)
    monkeypatch.setattr(trial, "Clients", Clients)
    return SimpleNamespace(server=Server, clients=Clients)


def test_an_ordered_stop_is_measured(fakes):
    found = attempt(Case("one", ABORT, 64), OURS, 3, 30)
    assert found.broken == []
    assert (found.code, found.seconds, found.gone, found.round) == (0, 0.4, 0.45, 3)
    assert found.after_last_byte == pytest.approx(0.3)
    assert found.ends == {TYPED: 64}
    assert fakes.server.last.options == ("--shutdown-timeout", "0")
    assert fakes.server.last.environment == {}
    assert Trial.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_drain_has_its_time_and_whole_streams(fakes):
    found = attempt(Case("one", DRAIN, 8), STOCK, 1, 30)
    assert found.broken == ["8 streams without a proper end"]
    assert fakes.server.last.options == ("--shutdown-timeout", "30")
    assert fakes.server.last.environment == {"VLLM_ASHUTDOWN": "0"}
    fakes.clients.ends = WHOLE
    assert attempt(Case("one", DRAIN, 8), STOCK, 1, 30).broken == []


def test_without_a_stream_there_is_no_last_byte(fakes):
    found = attempt(Case("one", ABORT, 0), OURS, 1, 30)
    assert (found.after_last_byte, found.broken) == (None, [])


def test_a_hang_and_an_error_line_are_broken_promises(fakes):
    fakes.server.end, fakes.server.errors = End(None, 15.0, 115.0), ["ERROR x"]
    found = attempt(PLAIN, OURS, 1, 30)
    assert found.hung
    assert found.broken == ["hung", "1 error lines"]


def test_what_its_own_report_complains_of_is_a_broken_promise(fakes):
    fakes.server.report = SimpleNamespace(problems=("EngineCore was killed",))
    assert attempt(PLAIN, OURS, 1, 30).broken == ["its report: EngineCore was killed"]


def test_the_floor_is_a_kill_of_a_server_without_the_plugin(fakes, monkeypatch):
    monkeypatch.setattr(trial, "kill", lambda processes: Floor(3, 1, 0.1, 0))
    found = attempt(PLAIN, FLOOR, 1, 30)
    assert (found.code, found.seconds, found.broken) == (-9, 0.1, [])
    assert fakes.server.last.environment == {"VLLM_ASHUTDOWN": "0"}


def test_a_server_that_does_not_start_does_not_end_the_campaign(fakes, monkeypatch):
    def fails(self):
        raise RuntimeError("the server did not start:\nall of\nits log")

    monkeypatch.setattr(fakes.server, "__enter__", fails)
    found = attempt(PLAIN, OURS, 1, 30)
    assert found.broken == ["the server did not start: its log"]
    assert "all of" in found.failed
    assert not found.hung
    assert not found.counts
