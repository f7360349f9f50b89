"""The metrics of a stop, read from a server that stops, and in a program."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.prometheus import unregister_vllm_metrics

from tests.programs import run
from tests.served import TOKENS, Served, served, signalled
from tests.stub_core import StubCore, make_engine
from vllm_ashutdown.adapters import launcher_drain
from vllm_ashutdown.adapters.endpoint_plugins import DrainEndpoint
from vllm_ashutdown.core.reading import PHASES
from vllm_ashutdown.core.report import ShutdownReport

KINDS = ("completed", "aborted", "refused")


@pytest.fixture
def core() -> Iterator[StubCore]:
    one = StubCore()
    yield one
    one.close()


def here(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"vllm:shutdown_{name}", labels) or 0.0


def counts() -> dict[str, float]:
    return {kind: here("requests_total", kind=kind) for kind in KINDS}


async def scraped(server: Served) -> dict[str, float]:
    answer = await server.client.get("/metrics")
    assert answer.status_code == 200
    lines = [one.rpartition(" ") for one in answer.text.splitlines()]
    prefix = "vllm:shutdown_"
    return {
        name.removeprefix(prefix): float(value)
        for name, _, value in lines
        if name.startswith(prefix)
    }


def phase(found: dict[str, float]) -> str:
    (at,) = [one for one in PHASES if found[f'phase{{phase="{one}"}}'] == 1]
    return at


async def test_what_is_read_in_a_drain_is_what_the_report_says(
    core, tmp_path, monkeypatch
):
    path = tmp_path / "report.json"
    monkeypatch.setenv("VLLM_ASHUTDOWN_REPORT", str(path))
    before = counts()
    async with served(make_engine(core, 30)) as server:
        assert phase(await scraped(server)) == "serving"
        streams = [(await server.stream())[0] for _ in range(3)]
        assert (await scraped(server))["requests_in_flight"] == 0
        await signalled(server)
        assert (await server.client.post(TOKENS)).status_code == 503
        first, second = await scraped(server), await scraped(server)
        assert phase(first) == "drain"
        assert first["requests_in_flight"] == 3
        assert 30 < second["remaining_seconds"] < first["remaining_seconds"] <= 40
        refused = 'requests_total{kind="refused"}'
        assert first[refused] == before["refused"] + 1
        core.finish_all()
        await asyncio.gather(*streams)
        await server.over()
    report = ShutdownReport.from_json(path.read_text())
    assert phase({f'phase{{phase="{p}"}}': here("phase", phase=p) for p in PHASES}) == (
        "complete"
    )
    ended = {kind: counts()[kind] - before[kind] for kind in KINDS}
    assert ended == {kind: getattr(report.requests, kind) for kind in KINDS}
    assert ended == {"completed": 3, "aborted": 0, "refused": 1}
    spent = {str(one.phase): one.spent for one in report.phases}
    assert spent == {name: here("phase_seconds", phase=name) for name in spent}
    assert "http" in spent
    assert here("leftovers") == len(report.leftovers) == 0


async def test_what_a_stop_has_ended_is_counted_as_that(core, tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    monkeypatch.setenv("VLLM_ASHUTDOWN_REPORT", str(path))
    before = counts()
    async with served(make_engine(core, 0)) as server:
        stream, _ = await server.stream()
        server.stop()
        await stream
        await server.over()
    ended = {kind: counts()[kind] - before[kind] for kind in KINDS}
    assert ended == {"completed": 0, "aborted": 1, "refused": 0}
    assert ShutdownReport.from_json(path.read_text()).requests.aborted == 1


async def test_a_prepared_drain_is_seen_and_one_that_is_taken_back_is_over(core):
    async with served(make_engine(core, 30), DrainEndpoint()) as server:
        stream, _ = await server.stream()
        assert (await server.client.post("/drain?timeout=0")).status_code == 202
        found = await scraped(server)
        assert (phase(found), found["requests_in_flight"]) == ("prepare", 1)
        await server.client.delete("/drain")
        found = await scraped(server)
        assert (phase(found), found["requests_in_flight"]) == ("serving", 0)
        core.finish_all()
        await stream


async def test_of_several_servers_each_writes_down_whom_it_has_turned_away(
    core, tmp_path, monkeypatch
):
    # Another one of them may be asked, and reads what stands there.
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    before = counts()["refused"]
    async with served(make_engine(core, 30), DrainEndpoint()) as server:
        assert (await server.client.post("/drain")).status_code == 200
        assert (await server.client.post(TOKENS)).status_code == 503
        assert counts()["refused"] == before + 1, "and nobody has asked this one"


async def test_an_engine_that_is_made_later_does_not_cost_a_server_its_metrics(core):
    async with served(make_engine(core, 30)) as server:
        unregister_vllm_metrics()  # as vLLM does for each
        assert REGISTRY.get_sample_value("vllm:shutdown_leftovers") is None
        assert phase(await scraped(server)) == "serving"


async def test_the_next_server_of_a_process_begins_at_serving():
    for _ in range(2):
        core = StubCore()
        async with served(make_engine(core, 30)) as server:
            assert phase(await scraped(server)) == "serving"
            server.stop()
            await server.over()
        assert here("phase", phase="complete") == 1
        core.close()


# -- in a program ------------------------------------------------------------------


async def stopped_with(core: StubCore, loggers: list[object] | None) -> bool:
    """Whether there are metrics of ours behind a stop of an engine with these."""
    unregister_vllm_metrics()
    engine = make_engine(core)
    if loggers is not None:
        engine.logger_manager = SimpleNamespace(stat_loggers=loggers)
    await engine.ashutdown()
    return REGISTRY.get_sample_value("vllm:shutdown_leftovers") is not None


class OfRay(PrometheusStatLogger):
    """Reports elsewhere."""


@pytest.mark.parametrize(
    ("loggers", "there"),
    [
        (None, False),
        ([], False),
        ([OfRay.__new__(OfRay)], False),
        ([object(), PrometheusStatLogger.__new__(PrometheusStatLogger)], True),
    ],
    ids=["none", "no logger", "elsewhere", "vLLM's"],
)
async def test_a_program_has_ours_only_where_it_has_vllms(core, loggers, there):
    assert await stopped_with(core, loggers) is there
    if there:
        assert here("phase", phase="complete") == 1
        assert here("phase_seconds", phase="core") > 0


def test_no_process_without_a_server_imports_them():
    code, lines, _ = run("""
import vllm_ashutdown.adapters.async_llm, vllm_ashutdown.adapters.core
tell([one for one in sys.modules if one.startswith("prometheus_client")])
tell([one for one in sys.modules if "ashutdown.telling" in one])
""")
    assert (code, lines) == (0, ["[]", "[]"])


def test_the_core_and_worker_adapters_know_nothing_of_them():
    adapters = Path(__file__).parents[3] / "vllm" / "vllm_ashutdown" / "adapters"
    for name in ("core", "multiproc_executor", "coordinator", "shm_broadcast"):
        assert "telling" not in (adapters / f"{name}.py").read_text()


async def test_metrics_that_cannot_be_made_cost_no_server_and_no_stop(
    core, monkeypatch, log
):
    def broken(*_: object) -> None:
        raise ValueError("Invalid multiprocess mode")

    monkeypatch.setattr(launcher_drain, "Meter", broken)
    async with served(make_engine(core, 30)) as server:
        stream, _ = await server.stream()
        await signalled(server)
        core.finish_all()
        assert (await stream).endswith(b"[DONE]\n\n")
        await server.over()
    (warning,) = [one for one in log.records if one.levelname == "WARNING"]
    assert "Invalid multiprocess mode" in warning.getMessage()
    assert "the server serves" in warning.getMessage()
