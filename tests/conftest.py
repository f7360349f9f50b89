"""What every test has: the plugin laid over the installed vLLM, and its log."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

import vllm_ashutdown

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
    """Takes what is imported by now out of the garbage collector's rounds.

    Many tests collect, to see that nothing keeps an engine alive. With torch in the
    heap each round would take a third of a second.
    """
    gc.collect()
    gc.freeze()
