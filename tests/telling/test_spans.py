"""A stop as spans, sent as vLLM sends its own, to a receiver of OTLP over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.programs import run
from vllm_ashutdown.adapters.observers import observers
from vllm_ashutdown.core.tally import Tally

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http",
    reason="the exporters of OpenTelemetry are not installed",
)
from tests.otlp import Receiver, attributes

PROGRAM = """
import asyncio, time
from vllm_ashutdown.core.budget import Budget
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Phase
from vllm_ashutdown.core.stop import Stop
from vllm_ashutdown.core.trigger import Trigger
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
exporter = OTLPSpanExporter(endpoint={endpoint!r})
provider.add_span_processor(BatchSpanProcessor(exporter))
trace.set_tracer_provider(provider)
from vllm_ashutdown.telling.spans import Spans, flushed

async def main():
    stop = Stop(Mode.DRAIN, Budget.arm(5, 5), Trigger.signal(15))
    stop.observed_by(Spans(lambda: 1_000_000_000_000))
    stop.do(Phase.ANNOUNCE, lambda: "loud")
    {core}
    stop.requests.completed, stop.requests.aborted = 3, 2
    stop.leftovers.append("a file")
    stop.finish()
    report = stop.outcome.result()
    stop.conclude(report)
    began = time.monotonic()
    await flushed({seconds})
    tell(time.monotonic() - began)
    tell(report.seconds)
    for record in report.phases:
        tell(record.phase, record.began, record.spent)

asyncio.run(main())
os._exit(0)
"""


@pytest.fixture
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    one = Receiver(getattr(request, "param", True))
    yield one
    one.close()


def traced(receiver: Receiver, core: str = "", seconds: float = 10) -> list[str]:
    program = PROGRAM.format(endpoint=receiver.endpoint, core=core, seconds=seconds)
    code, lines, complaints = run(program)
    assert code == 0, complaints
    return lines


def test_each_phase_is_a_child_of_one_span_with_the_reports_own_times(receiver):
    lines = traced(receiver, "stop.do(Phase.CORE, lambda: 1 / 0)")
    whole = float(lines[1])
    told = [line.split() for line in lines[2:]]
    *phases, root = sorted(receiver.spans(), key=lambda span: span.end_time_unix_nano)
    assert root.name == "shutdown"
    assert root.parent_span_id == b""
    assert root.end_time_unix_nano == 1_000_000_000_000
    assert root.start_time_unix_nano == 1_000_000_000_000 - round(whole * 1e9)
    assert attributes(root) == {
        "trigger": "signal SIGTERM",
        "mode": "drain",
        "final_mode": "drain",
        "clean": False,
        "requests.completed": 3,
        "requests.aborted": 2,
        "requests.refused": 0,
        "leftovers": 1,
    }
    assert root.status.code == 2
    assert [one.name for one in phases] == ["shutdown.announce", "shutdown.core"]
    for span, (phase, began, spent) in zip(phases, told, strict=True):
        assert span.parent_span_id == root.span_id
        assert span.trace_id == root.trace_id
        starts = root.start_time_unix_nano + round(float(began) * 1e9)
        assert span.start_time_unix_nano == starts
        assert span.end_time_unix_nano == starts + round(float(spent) * 1e9)
        assert attributes(span)["phase"] == phase
    announce, core = map(attributes, phases)
    assert (announce["outcome"], announce["detail"]) == ("done", "loud")
    assert core["outcome"] == "failed"
    assert [one.status.code for one in phases] == [0, 2]


@pytest.mark.parametrize("receiver", [False], indirect=True)
def test_a_receiver_that_does_not_answer_holds_nothing_up(receiver):
    lines = traced(receiver, seconds=0.2)
    assert 0.2 <= float(lines[0]) < 5


# -- when --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "there"),
    [
        (SimpleNamespace(), False),
        (SimpleNamespace(observability_config=None), False),
        (
            SimpleNamespace(
                observability_config=SimpleNamespace(otlp_traces_endpoint=None)
            ),
            False,
        ),
        (
            SimpleNamespace(
                observability_config=SimpleNamespace(otlp_traces_endpoint="x:1")
            ),
            True,
        ),
    ],
    ids=["half built", "without", "off", "on"],
)
def test_there_are_spans_only_where_vllm_traces(engine, there):
    state: Any = SimpleNamespace(meter=None, stop=None, tally=Tally())
    found = [type(one).__name__ for one in observers(engine, state)]
    assert found == ["Spans"] * there


def test_without_tracing_nothing_of_it_is_imported():
    code, lines, _ = run("""
from types import SimpleNamespace
import vllm_ashutdown.adapters.observers as made
made.observers(SimpleNamespace(), SimpleNamespace(meter=None))
tell([one for one in sys.modules if "opentelemetry" in one or "spans" in one])
""")
    assert (code, lines) == (0, ["[]"])
