"""What lies in the temp directory: sockets that ZMQ talks through, stores, metrics."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from .probe import Probe
from .view import View


def _ipc_files(view: View) -> frozenset[str]:
    return _there(view.owned.ipc)


def _temporary_files(view: View) -> frozenset[str]:
    return _there(view.owned.files | _metrics_directory())


def _there(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(path for path in paths if os.path.lexists(path))


def _metrics_directory() -> frozenset[str]:
    """Where API servers share their metrics, if vLLM made it in this process.

    One that is the user's stands in the environment and nowhere else.
    """
    module: Any = sys.modules.get("vllm.v1.metrics.prometheus")
    directory = getattr(module, "_prometheus_multiproc_dir", None)
    name = getattr(directory, "name", None)
    return frozenset({name} if isinstance(name, str) else ())


IPC_FILES = Probe(
    row="ipc files",
    what="UNIX sockets that the front end and its cores talk through",
    noun="socket file",
    state="is there",
    look=_ipc_files,
)
TEMPORARY_FILES = Probe(
    row="temporary files",
    what="torch's file stores, the directory of metrics that vLLM made",
    noun="temporary file",
    state="is there",
    look=_temporary_files,
)
