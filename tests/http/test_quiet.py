"""Errors of a cut answer's handler stay out of the log; every other error stays in."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Iterator

import pytest

from vllm_ashutdown.core.exchange import Exchange, current_exchange
from vllm_ashutdown.errors import ENDED
from vllm_ashutdown.http.quiet import quieted


class Lines(logging.Handler):
    """What gets through."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def seen() -> Iterator[list[str]]:
    logger, handler = logging.getLogger("served"), Lines()
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)


def say(exchange: Exchange | None, level: int, text: str) -> None:
    """Logs from a child logger, in the context of a request."""

    def in_context() -> None:
        current_exchange.set(exchange)
        logging.getLogger("served.deep.below").log(level, text)

    contextvars.copy_context().run(in_context)


def test_only_errors_of_a_cut_answer_are_dropped(seen: list[str]) -> None:
    cut = Exchange()
    cut.end(ENDED)
    with quieted("served"):
        say(cut, logging.ERROR, "a cut answer's error")
        say(cut, logging.WARNING, "a cut answer's warning")
        say(Exchange(), logging.ERROR, "a whole answer's error")
        say(None, logging.ERROR, "nobody's error")
    say(cut, logging.ERROR, "after the server")
    assert seen == [
        "a cut answer's warning",
        "a whole answer's error",
        "nobody's error",
        "after the server",
    ]
