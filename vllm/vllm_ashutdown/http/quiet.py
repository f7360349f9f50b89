"""Keeps what a cut answer's handler says about it out of the error log.

The stop has ended the answer and told the client. What vLLM's handler of that API
makes of its engine's typed error is of no interest any more, and some log it with
a traceback (those of the Messages API): a clean stop must not look like a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ..core.exchange import current_exchange


class _NotOfACutAnswer(logging.Filter):
    """Lets pass all but errors that are logged in the context of a cut answer."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR:
            return True
        exchange = current_exchange.get()
        return exchange is None or not exchange.ended


@contextmanager
def quieted(name: str = "vllm") -> Iterator[None]:
    """For as long as the block runs, on the handlers that logger ``name`` has."""
    quiet = _NotOfACutAnswer()
    handlers = list(logging.getLogger(name).handlers)
    for handler in handlers:
        handler.addFilter(quiet)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(quiet)
