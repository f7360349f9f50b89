"""What a signal to a process of an engine means in a program, and who is still open."""

from __future__ import annotations

import gc
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_ashutdown.adapters.live import LiveEngines, answer_for
from vllm_ashutdown.core.trigger import Trigger
from vllm_ashutdown.starting import start
from vllm_ashutdown.tree.member import Member
from vllm_ashutdown.tree.place import home

PID = 4_300_000
"""Beyond the kernel's largest: nobody has it."""


class Engine:
    """One with a core process."""

    def __init__(self) -> None:
        manager = SimpleNamespace(processes=[SimpleNamespace(pid=PID)])
        self.engine_core = SimpleNamespace(
            resources=SimpleNamespace(engine_manager=manager)
        )


def test_ctrl_c_is_the_programs_and_a_sigterm_stops_the_engine():
    engines: list[Any] = [Engine()]
    stops: list[Any] = []

    def stop(which: Any, trigger: Trigger) -> None:
        stops.append((which in engines, trigger))

    answer_for(engines[0], stop)
    here = home()
    assert here is not None
    decide = here.record(PID).decide
    assert decide is not None
    member = Member(PID, 1, "EngineCore")
    assert decide(member, signal.SIGINT)
    assert stops == []
    assert decide(member, signal.SIGTERM)
    assert stops == [(True, Trigger.signal(signal.SIGTERM, str(member)))]
    stops.clear()
    engines.clear()
    gc.collect()
    assert not decide(member, signal.SIGTERM), "nobody is there to see to it"
    assert stops == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_a_server_starts_with_the_engine_it_ends_the_start(monkeypatch, number):
    asked: list[Any] = []

    def decide(*told: Any) -> bool:
        asked.append(told)
        return True

    monkeypatch.setattr(start, "active", True)
    monkeypatch.setattr(start, "decide", decide)
    engine, member = Engine(), Member(PID, 1, "EngineCore")
    answer_for(
        engine, lambda *_: pytest.fail("an engine that stops beneath its server")
    )
    here = home()
    assert here is not None
    answer = here.record(PID).decide
    assert answer is not None
    assert answer(member, number)
    assert asked == [(member, number)]


def test_each_is_closed_at_exit_though_one_is_interrupted():
    engines, closed = [Engine(), Engine(), Engine()], []
    live = LiveEngines()

    def close(engine: Any) -> None:
        closed.append(engine)
        if len(closed) == 1:
            raise KeyboardInterrupt

    for engine in engines:
        live.add(engine, close)
    live.discard(engines[0])
    with pytest.raises(KeyboardInterrupt):
        live._close_all()
    assert len(closed) == 2
    assert engines[0] not in closed
