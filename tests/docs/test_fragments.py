"""The pieces of programs on the pages run, each on a stub core in place of a model."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
import shlex
from collections.abc import AsyncIterator
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from tests.pages import PAGES, ROOT, Block, blocks
from tests.served import served
from tests.stub_core import (
    PROMPT,
    StubCore,
    make_engine,
    make_llm_engine,
    sampling,
    stub_engine,
)
from vllm import LLM
from vllm_ashutdown.adapters.endpoint_plugins import DrainEndpoint

FRAGMENTS = [
    block
    for page in PAGES
    for block in blocks(page, "python")
    if block.output is None  # else it is a whole program
]


def test_there_are_some():
    assert len(FRAGMENTS) >= 7


def compiled(block: Block) -> CodeType:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    made = compile(block.text, str(block), "exec", flags)
    assert isinstance(made, CodeType)
    return made


@pytest.fixture
async def names() -> AsyncIterator[dict[str, Any]]:
    """What the pieces take for given."""
    with contextlib.ExitStack() as stack:

        def another() -> StubCore:
            core = StubCore()
            stack.callback(core.close)
            return core

        def llm(*, model: str) -> LLM:
            one, engine = LLM.__new__(LLM), make_llm_engine(another())
            stack.callback(engine.shutdown)
            one.llm_engine, one.renderer = engine, engine.renderer
            one.input_processor = engine.input_processor
            one.model_config = SimpleNamespace(model=model, runner_type="generate")
            one._cached_repr = None
            return one

        engine, _ = stack.enter_context(stub_engine(30))
        yield {
            "AsyncLLM": SimpleNamespace(
                from_engine_args=lambda args: make_engine(another())
            ),
            "LLM": llm,
            "args": None,
            "engine": engine,
            "model": "stub",
            "params": sampling(3),
            "prompt": dict(PROMPT),
            "request_id": "r",
        }


@pytest.mark.parametrize("block", FRAGMENTS, ids=str)
async def test_it_runs(block: Block, names: dict[str, Any]):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        work = eval(compiled(block), names)
        if inspect.isawaitable(work):
            await work
    assert ("print(" in block.text) == bool(said.getvalue().strip())


def test_the_explorer_finds_nothing():
    """As CONTRIBUTING has one look for it."""
    page = ROOT / "CONTRIBUTING.md"
    (line,) = [
        line
        for block in blocks(page, "sh")
        for line in block.text.splitlines()
        if "explore(" in line
    ]
    *_, option, program = shlex.split(line)
    assert option == "-c"
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(program, {})
    assert said.getvalue() == "[]\n"


async def test_each_curl_of_the_page_about_the_load_balancer():
    page = ROOT / "docs" / "how-to" / "load-balancer.md"
    asked = [
        shlex.split(line)
        for block in blocks(page, "sh")
        for line in block.text.splitlines()
        if line.startswith("curl ")
    ]
    core = StubCore()
    found = []
    async with served(make_engine(core, 30), DrainEndpoint()) as server:
        for words in asked:
            method = words[words.index("-X") + 1] if "-X" in words else "GET"
            match = re.fullmatch(r"http://127\.0\.0\.1:8000(/\S*)", words[-1])
            assert match is not None, words
            answer = await server.client.request(method, match[1])
            found.append((method, answer.status_code, answer.json()["phase"]))
    core.close()
    assert found == [
        ("POST", 200, "prepare"),
        ("GET", 200, "prepare"),
        ("DELETE", 200, "serving"),
    ]
