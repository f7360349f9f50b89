"""What an actor of Ray's does with its engines before it leaves; Ray is played."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vllm_ashutdown.actor import before_leaving
from vllm_ashutdown.adapters.live import LiveEngines


class Engine:
    """One that is idle, or at work on these."""

    def __init__(self, *requests: str) -> None:
        states = dict.fromkeys(requests)
        self.output_processor = SimpleNamespace(request_states=states)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What comes to pass, in order, in a process that is an actor."""
    happened: list[Any] = []
    ray: Any = ModuleType("ray")
    ray.actor = ModuleType("ray.actor")
    ray.is_initialized = lambda: True
    ray.get_runtime_context = lambda: SimpleNamespace(get_actor_id=lambda: "an actor")

    def exit_actor() -> None:
        happened.append("leaves")
        raise SystemExit

    ray.actor.exit_actor = exit_actor
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.actor", ray.actor)
    return happened


def leave() -> None:
    with pytest.raises(SystemExit):
        sys.modules["ray.actor"].exit_actor()


def test_what_is_idle_is_closed_before_the_actor_leaves(said):
    live, idle, busy = LiveEngines(), Engine(), Engine("r0")
    for engine in (busy, idle):
        live.add(engine, said.append)
    leave()
    assert said == [idle, "leaves"]  # once, for all that were added


def test_a_ray_that_cannot_be_asked_harms_no_engine(said):
    del sys.modules["ray"].is_initialized  # half imported, on another thread
    leave = sys.modules["ray.actor"].exit_actor
    before_leaving(lambda: said.append("closed"))
    assert sys.modules["ray.actor"].exit_actor is leave


def test_one_that_is_closed_by_then_is_no_more_business_of_its(said):
    live, engine = LiveEngines(), Engine()
    live.add(engine, said.append)
    live.discard(engine)
    leave()
    assert said == ["leaves"]


def test_an_engine_that_cannot_be_closed_keeps_no_actor(said):
    live, engine = LiveEngines(), Engine()

    def close(engine: Any) -> None:
        raise ZeroDivisionError

    live.add(engine, close)
    leave()
    assert said == ["leaves"]


@pytest.mark.parametrize("what", ["no cluster", "a driver", "another Ray"])
def test_what_is_no_actor_is_left_alone(said, what: str):
    ray: Any = sys.modules["ray"]
    if what == "no cluster":
        ray.is_initialized = lambda: False
        ray.get_runtime_context = lambda: said.append("a cluster is begun")
    elif what == "a driver":
        ray.get_runtime_context = lambda: SimpleNamespace(get_actor_id=lambda: None)
    else:
        del ray.actor.exit_actor
    before = dict(vars(ray.actor))
    before_leaving(said.append)
    assert dict(vars(ray.actor)) == before
    assert said == []


def test_nothing_of_ray_is_imported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.delitem(sys.modules, "ray.actor", raising=False)
    before_leaving(lambda: None)
    assert "ray" not in sys.modules
