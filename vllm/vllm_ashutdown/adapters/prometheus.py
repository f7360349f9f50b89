"""vllm.v1.metrics.prometheus: the directory that several API servers share.

Each process keeps its metrics there in files that bear its pid. prometheus_client wants
to be told when the *process* is dead, and then removes its live gauges. vLLM tells it
when an engine is stopped, gives the directory's object instead of its path, which is an
error line, and only in the process that made the directory: in an API server, where
the metrics are, it does nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Callable

from ..core.files import Kind, ledger

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Names the directory to every process; prometheus_client's own."""


def make_setup_multiprocess_prometheus(
    original: Callable[[], None],
) -> Callable[[], None]:
    """``setup_multiprocess_prometheus``, which the parent of the API servers calls.

    What it has made is its own to remove. A directory that a user has named is not.
    """

    @functools.wraps(original)
    def setup_multiprocess_prometheus() -> None:
        original()
        module = sys.modules[original.__module__]
        made = getattr(module, "_prometheus_multiproc_dir", None)
        if isinstance(made, tempfile.TemporaryDirectory):
            ledger.remember(made.name, Kind.DIRECTORY, made.cleanup)

    return setup_multiprocess_prometheus


def make_shutdown_prometheus(original: Callable[[], None]) -> Callable[[], None]:
    """``shutdown_prometheus``, which each engine calls that is stopped.

    Until the process ends others may run in it, and ``/metrics`` is still open.
    """
    atexit.register(mark_this_process_dead)

    @functools.wraps(original)
    def shutdown_prometheus() -> None:
        return None

    return shutdown_prometheus


def mark_this_process_dead() -> None:
    """Removes this process's live gauges from the shared directory, if there is one.

    They would be counted on, and in a user's own directory by the next run too.
    """
    directory = os.environ.get(VARIABLE)
    if directory:
        from prometheus_client import multiprocess

        mark: Callable[[int, str], None] = multiprocess.mark_process_dead
        # The directory may be going at this moment.
        with contextlib.suppress(FileNotFoundError):
            mark(os.getpid(), directory)
