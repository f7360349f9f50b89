"""What every test has: the plugin laid over the installed vLLM, and its log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import vllm_ashutdown
from tests import heap
from tests.life import Program

vllm_ashutdown.register()


@pytest.fixture
def log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.LogCaptureFixture]:
    """What is logged, also once vLLM has set up logging and nothing propagates."""
    logger = logging.getLogger("vllm.ashutdown")
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(caplog.handler)
    caplog.set_level(logging.DEBUG, logger.name)
    yield caplog
    logger.removeHandler(caplog.handler)


def pytest_collection_finish() -> None:
    """Many tests collect, to see that nothing keeps an engine alive."""
    heap.freeze()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Begins a program of :mod:`tests.life`; none of them is left behind."""
    begun: list[Program] = []

    def program(text: str, *arguments: str) -> Program:
        begun.append(Program(tmp_path, text, *arguments))
        return begun[-1]

    yield program
    for one in begun:
        one.process.kill()
        one.process.communicate()
