"""The route ``/drain``: through vLLM's loader and launcher, on a stub core."""

from __future__ import annotations

import asyncio
import importlib.metadata
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import vllm.envs
from fastapi import FastAPI
from vllm.plugins.endpoint_plugins.interface import (
    EndpointPlugin,
    attach_endpoint_plugins,
)

from tests.served import TOKENS, Served, said, served, signalled
from tests.stub_core import StubCore, make_engine
from vllm_ashutdown.adapters.endpoint_plugins import DrainEndpoint
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.report import ShutdownReport

SOON = 0.2
"""Seconds from the end of the last stream to the answer, as is promised."""

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def report_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "report.json"
    monkeypatch.setenv("VLLM_ASHUTDOWN_REPORT", str(path))
    return path


@pytest.fixture
def core() -> Iterator[StubCore]:
    one = StubCore()
    yield one
    one.close()


@pytest.fixture
async def server(core: StubCore, report_path: Path) -> AsyncIterator[Served]:
    async with served(make_engine(core, 30), DrainEndpoint()) as one:
        yield one


async def prepared(server: Served) -> asyncio.Task[httpx.Response]:
    """A POST that waits."""
    with said("drain prepared") as event:
        task = asyncio.create_task(server.client.post("/drain"))
        await asyncio.wait_for(event.wait(), 20)
    return task


# -- steering ----------------------------------------------------------------------


async def test_it_answers_with_the_end_of_the_last_stream(server, core):
    streams = [(await server.stream())[0] for _ in range(2)]
    asked = await prepared(server)
    found = (await server.client.get("/drain")).json()
    assert 25 < found.pop("remaining_seconds") <= 30, "vLLM's --shutdown-timeout"
    assert found.pop("busy_servers") == 0
    assert found == {"phase": "prepare", "idle": False, "in_flight": 2}
    for late in (server.client.get("/health"), server.client.post(TOKENS)):
        assert (await late).status_code == 503
    assert not asked.done()
    core.finish_all()
    bodies = await asyncio.gather(*streams)
    ended = time.monotonic()
    answer = await asked
    assert time.monotonic() - ended < SOON
    assert all(body.endswith(b"[DONE]\n\n") for body in bodies), "nothing was cut"
    assert (answer.status_code, answer.json()["idle"]) == (200, True)
    assert not server.serving.done(), "nothing is taken down"


async def test_the_signal_that_comes_then_finds_nothing_in_flight(
    server, core, report_path
):
    stream, _ = await server.stream()
    asked = await prepared(server)
    assert (await server.client.post(TOKENS)).status_code == 503
    core.finish_all()
    await asyncio.gather(stream, asked)
    server.stop()
    await server.over()
    report = ShutdownReport.from_json(report_path.read_text())
    assert report.clean
    # What ended and was turned away before the signal is told, too.
    assert report.requests.completed == 1
    assert (report.requests.aborted, report.requests.refused) == (0, 1)
    assert report.seconds < 5


async def test_ten_at_once_join_one_drain(server, core, monkeypatch):
    preparation, here = server.app.state.ashutdown_preparation, asyncio.Semaphore(0)
    drain = preparation.drain

    async def counted(seconds: float) -> Any:
        here.release()
        return await drain(seconds)

    monkeypatch.setattr(preparation, "drain", counted)
    stream, _ = await server.stream()
    asked = [asyncio.create_task(server.client.post("/drain")) for _ in range(10)]
    for _ in asked:
        await asyncio.wait_for(here.acquire(), 20)
    await server.client.get("/drain")  # behind all of them, so they wait
    assert not any(one.done() for one in asked)
    core.finish_all()
    await stream
    ended = time.monotonic()
    answers = await asyncio.gather(*asked)
    assert time.monotonic() - ended < SOON
    assert [one.status_code for one in answers] == [200] * 10
    again = await server.client.post("/drain")
    assert (again.status_code, again.json()["phase"]) == (200, "prepare")


async def test_its_time_can_be_out_and_the_stream_runs_on(server, core):
    stream, _ = await server.stream()
    answer = await server.client.post("/drain?timeout=0.01")
    assert answer.status_code == 202
    assert answer.json() == {
        "phase": "prepare",
        "idle": False,
        "in_flight": 1,
        "busy_servers": 0,
        "remaining_seconds": 0,
    }
    core.finish_all()
    assert (await stream).endswith(b"[DONE]\n\n")


async def test_a_drain_without_a_time_of_vllms_own_has_no_limit(core):
    async with served(make_engine(core, 0), DrainEndpoint()) as server:
        stream, _ = await server.stream()
        asked = await prepared(server)
        found = (await server.client.get("/drain")).json()
        assert found["remaining_seconds"] is None
        core.finish_all()
        assert (await asked).status_code == 200
        await stream


async def test_taken_back_the_server_serves_as_before(server, core, report_path):
    stream, _ = await server.stream()
    asked = await prepared(server)
    assert (await server.client.post(TOKENS)).status_code == 503
    back = await server.client.delete("/drain")
    assert (back.status_code, back.json()["phase"]) == (200, "serving")
    told = await asked
    assert (told.status_code, told.json()["phase"]) == (409, "serving")
    another, _ = await server.stream()
    core.finish_all()
    for one in (stream, another):
        assert (await one).endswith(b"[DONE]\n\n")
    assert (await server.client.delete("/drain")).status_code == 200
    server.stop()
    await server.over()
    requests = ShutdownReport.from_json(report_path.read_text()).requests
    assert (requests.completed, requests.refused) == (0, 0), "of this stop alone"


async def test_a_stop_is_joined_and_not_taken_back(server, core, report_path):
    stream, _ = await server.stream()
    await signalled(server)
    asked = asyncio.create_task(server.client.post("/drain"))
    back = await server.client.delete("/drain")
    assert back.status_code == 409
    assert "a stop has begun" in back.json()["error"]["message"]
    view = (await server.client.get("/drain")).json()
    assert (view["phase"], view["in_flight"]) == ("drain", 1)
    assert 30 < view["remaining_seconds"] <= 40
    assert not asked.done()
    core.finish_all()
    answer = await asked
    assert (answer.status_code, answer.json()["idle"]) == (200, True)
    await stream
    await server.over()
    report = ShutdownReport.from_json(report_path.read_text())
    assert report.final_mode is Mode.DRAIN
    assert report.requests.refused == 0, "who steers is no request"


async def test_a_signal_takes_over_what_was_prepared(server, core):
    stream, _ = await server.stream()
    asked = await prepared(server)
    await signalled(server)
    assert not asked.done()
    core.finish_all()
    assert (await asked).status_code == 200
    await stream
    await server.over()


async def test_a_drain_that_a_second_signal_cuts_short_is_answered(server):
    stream, _ = await server.stream()
    asked = await prepared(server)
    await signalled(server)
    server.stop()
    assert b"event: error" in await stream
    assert (await asked).status_code == 200
    await server.over()


# -- who may, and what is understood -----------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        *("timeout=", "timeout=soon", "timeout=-1", "timeout=nan", "timeout=10s"),
        *("timeuot=3", "timeout=1&timeout=2", "timeout=1&wait=2"),
    ],
)
async def test_what_is_malformed_changes_nothing_and_says_why(server, query):
    answer = await server.client.post(f"/drain?{query}")
    error = answer.json()["error"]
    assert answer.status_code == error["code"] == 400
    assert "is not valid: give" in error["message"]
    assert error["param"] in query
    assert (await server.client.get("/drain")).json()["phase"] == "serving"


@pytest.mark.parametrize("text", ["0", "1.5", "inf", "1e9"])
async def test_any_time_from_nothing_to_no_limit_is_understood(server, text):
    answer = await server.client.post(f"/drain?timeout={text}")
    assert answer.status_code == 200


async def test_it_asks_for_the_servers_own_keys(core):
    engine = make_engine(core, 30)
    async with served(engine, DrainEndpoint(), api_key=["a", "b"]) as server:
        wrong = ("", "Bearer", "Bearer c", "Basic a", "a", "Bearer a b")
        for method in ("POST", "GET", "DELETE"):
            for text in wrong:
                headers = {"Authorization": text}
                answer = await server.client.request(method, "/drain", headers=headers)
                assert (answer.status_code, method, text) == (401, method, text)
        for text in ("Bearer a", "bearer b"):
            headers = {"Authorization": text}
            answer = await server.client.get("/drain", headers=headers)
            assert answer.json()["phase"] == "serving", "nobody else has prepared it"
        answer = await server.client.post("/drain", headers=headers)
        assert answer.status_code == 200


async def test_vllms_variable_is_a_key_too(core, monkeypatch):
    monkeypatch.setattr(vllm.envs, "VLLM_API_KEY", "secret")
    async with served(make_engine(core), DrainEndpoint()) as server:
        assert (await server.client.get("/drain")).status_code == 401
        headers = {"Authorization": "Bearer secret"}
        answer = await server.client.get("/drain", headers=headers)
        assert answer.status_code == 200


async def test_behind_a_prefix_it_is_heard_in_a_drain_as_well(server):
    server.app.root_path = "/llm"
    for path in ("/drain", "/llm/drain"):
        assert (await server.client.post(path)).status_code == 200
        assert (await server.client.delete(path)).json()["phase"] == "serving"


async def test_other_routes_of_that_name_are_requests_like_any_other(server):
    await server.client.post("/drain")
    assert (await server.client.post("/v1/drain")).status_code == 503


# -- vLLM's side of it -------------------------------------------------------------


def point() -> importlib.metadata.EntryPoint:
    """The entry point that ``setup.py`` declares."""
    text = (ROOT / "setup.py").read_text()
    found = re.search(r'"vllm\.endpoint_plugins": \[\s*"(\w+) = ([\w.:]+)"', text)
    assert found is not None
    return importlib.metadata.EntryPoint(*found.groups(), "vllm.endpoint_plugins")


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    def entry_points(group: str) -> list[Any]:
        return [point()] if group == "vllm.endpoint_plugins" else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    app = FastAPI()
    app.state.args = SimpleNamespace(api_key=None)
    return app


def paths(app: FastAPI) -> set[str]:
    return {path for path, _ in app.openapi()["paths"].items()}


@pytest.mark.parametrize(
    ("listed", "there"),
    [
        (None, False),
        (["ashutdown"], False),
        (["ashutdown", "ashutdown_drain"], True),
    ],
)
def test_vllm_opens_the_route_only_where_it_is_listed(app, monkeypatch, listed, there):
    monkeypatch.setattr(vllm.envs, "VLLM_PLUGINS", listed)
    attach_endpoint_plugins(app, ("generate",))
    assert ("/drain" in paths(app)) is there
    if there:
        methods = app.openapi()["paths"]["/drain"]
        assert {"post", "get", "delete"} == set(methods)
        assert len({one["operationId"] for one in methods.values()}) == 3


def test_it_is_what_vllm_calls_an_endpoint_plugin():
    plugin = DrainEndpoint()
    assert isinstance(plugin, EndpointPlugin)
    assert plugin.name == point().name


async def test_a_server_that_we_do_not_stop_says_so(app):
    DrainEndpoint().attach_router(app)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        answer = await client.post("/drain")
    assert answer.status_code == 501
    assert "Send the server a SIGTERM" in answer.json()["error"]["message"]
