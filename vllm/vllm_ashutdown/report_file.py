"""Where the report of a server's stop goes."""

from __future__ import annotations

import logging
from pathlib import Path

from . import settings
from .core.report import ShutdownReport

logger = logging.getLogger("vllm.ashutdown")


def write(report: ShutdownReport) -> None:
    """Writes ``report`` to the file that ``VLLM_ASHUTDOWN_REPORT`` names, if any."""
    path = settings.report_path()
    if not path:
        return
    try:
        Path(path).write_text(report.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        logger.warning("[shutdown] no report written: %s", error)
