"""What Prometheus reads of a stop, and that it is what the report says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.programs import run
from vllm_ashutdown.core.budget import Budget
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Outcome, Phase, PhaseRecord
from vllm_ashutdown.core.reading import COMPLETE, PHASES, PREPARE, SERVING, Reading
from vllm_ashutdown.core.report import RequestCounts
from vllm_ashutdown.core.stop import Stop
from vllm_ashutdown.core.trigger import Trigger
from vllm_ashutdown.telling.metrics import Meter, ShutdownMetrics


class Scene:
    """A meter of its own registry, and what it reads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = ShutdownMetrics()
        self.metrics.expose(self.registry)
        self.reading, self.counts = Reading(), RequestCounts()
        self.meter = Meter(lambda: self.reading, lambda: self.counts, self.metrics)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"vllm:shutdown_{name}", labels)

    def phase(self) -> str:
        values = {phase: self.value("phase", phase=phase) for phase in PHASES}
        assert sorted(values.values()) == [0.0] * (len(PHASES) - 1) + [1.0]
        return max(values, key=values.__getitem__)

    def requests(self) -> dict[str, float | None]:
        return {
            kind: self.value("requests_total", kind=kind)
            for kind in ("completed", "aborted", "refused")
        }


@pytest.fixture
def scene() -> Scene:
    return Scene()


def counted(completed: float, aborted: float, refused: float) -> dict[str, float]:
    return {"completed": completed, "aborted": aborted, "refused": refused}


def a_stop() -> Stop:
    return Stop(Mode.DRAIN, Budget.arm(30, 10), Trigger.call("a test"))


def test_everything_is_there_before_anything_stops(scene):
    assert scene.phase() == SERVING
    assert scene.value("remaining_seconds") == 0
    assert scene.value("requests_in_flight") == 0
    assert scene.value("leftovers") == 0
    assert scene.requests() == counted(0, 0, 0)


def test_it_shows_how_it_stands(scene):
    scene.reading = Reading(PREPARE, 3, math.inf)
    scene.counts = RequestCounts(1, 0, 2)
    scene.meter.refresh()
    assert scene.phase() == PREPARE
    assert scene.value("remaining_seconds") == math.inf
    assert scene.value("requests_in_flight") == 3
    assert scene.requests() == counted(1, 0, 2)


def test_what_runs_while_it_serves_is_not_shown_for_it_is_not_known(scene):
    scene.reading = Reading(SERVING, 3)
    scene.meter.refresh()
    assert scene.value("requests_in_flight") == 0


def test_counters_go_up_only_and_a_drain_taken_back_counts_anew(scene):
    for counts in ((5, 0, 1), (0, 0, 1), (5, 2, 1), (6, 2, 1)):
        scene.counts = RequestCounts(*counts)
        scene.meter.refresh()
    assert scene.requests() == counted(6, 2, 1)
    scene.meter.restart()
    scene.counts = RequestCounts(2, 0, 0)
    scene.meter.refresh()
    assert scene.requests() == counted(8, 2, 1)


def test_it_follows_a_stop_and_ends_with_the_report(scene):
    stop = a_stop()
    stop.observers = [scene.meter]

    def read() -> Reading:
        return Reading(str(stop.phase), 2, stop.budget.remaining())

    scene.meter._read = read
    stop.do(Phase.ANNOUNCE, scene.phase)  # what it returns is the phase's detail
    assert stop.records[0].detail == "announce"
    assert 39 < scene.value("remaining_seconds") <= 40
    stop.requests.aborted = 2
    stop.leftovers.append("a file")
    stop.finish()
    report = stop.outcome.result().with_http(
        PhaseRecord(Phase.HTTP, 3, 0.25, Outcome.DONE), 1.0, refused=4
    )
    stop.conclude(report)
    assert scene.phase() == COMPLETE
    assert scene.requests() == counted(0, 2, 4)
    assert scene.value("leftovers") == 1
    for record in report.phases:
        assert scene.value("phase_seconds", phase=str(record.phase)) == record.spent


def test_to_expose_them_twice_is_harmless_and_once_more_brings_them_back(scene):
    scene.metrics.expose(scene.registry)
    scene.registry.unregister(scene.metrics.phase)  # as vLLM does for a new engine
    assert scene.value("phase", phase=SERVING) is None
    scene.metrics.expose(scene.registry)
    assert scene.phase() == SERVING


# -- several processes -------------------------------------------------------------

SERVER = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
from vllm_ashutdown.core.reading import Reading
from vllm_ashutdown.core.report import RequestCounts
from vllm_ashutdown.telling.metrics import Meter
phase, in_flight, left, completed = {arguments}
Meter(
    lambda: Reading(phase, in_flight, left), lambda: RequestCounts(completed)
)
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
for line in generate_latest(registry).decode().splitlines():
    if not line.startswith("#"):
        tell(line)
{end}
"""
DEAD = "multiprocess.mark_process_dead(os.getpid())"


@pytest.fixture
def serve(tmp_path: Any) -> Callable[..., dict[str, float]]:
    def serve(*arguments: Any, end: str = "") -> dict[str, float]:
        """A server that leaves its values there; what it reads of all."""
        text = SERVER.format(arguments=arguments, end=end)
        environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
        code, lines, complaints = run(text, environment=environment)
        assert (code, complaints) == (0, "")
        return {
            name.removeprefix("vllm:shutdown_"): float(value)
            for name, _, value in (line.rpartition(" ") for line in lines)
        }

    return serve


def test_of_several_servers_one_says_it_for_all(serve):
    serve("drain", 3, 8.0, 10)
    found = serve("drain", 2, 5.0, 20)
    assert found['phase{phase="drain"}'] == 2
    assert found['phase{phase="serving"}'] == 0
    assert found["requests_in_flight"] == 5
    assert found["remaining_seconds"] == 5, "as whoever is asked reads it"
    assert found['requests_total{kind="completed"}'] == 30


def test_a_server_that_is_gone_has_no_state_and_keeps_what_it_has_counted(serve):
    serve("drain", 3, 8.0, 10, end=DEAD)
    found = serve("end", 0, 2.0, 20)
    assert found['phase{phase="drain"}'] == 0
    assert found["requests_in_flight"] == 0
    assert found["remaining_seconds"] == 2
    assert found['requests_total{kind="completed"}'] == 30
