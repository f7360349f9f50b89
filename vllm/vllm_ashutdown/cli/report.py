"""``vllm-ashutdown report``: the saved report of a stop, for people and programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .. import settings
from ..core.report import ShutdownReport

EXIT_NOT_CLEAN = 1
"""The stop was not clean."""

STANDARD = "-"
"""Standard input, or standard output, instead of a file."""


def show(file: str | None, *, html: str | None, as_json: bool) -> int:
    """Prints the report in ``file``, or writes it as a page.

    Args:
        file: What a server wrote where ``VLLM_ASHUTDOWN_REPORT`` says, or what an
            audit has written, which has the reports of its servers. None is the
            one that the variable names here.
        html: Where to write it as one HTML page, if anywhere.
        as_json: Print it as JSON, with the verdict in it.

    Returns:
        0 if the stop was clean, 1 if not, 2 if there is no report to be read.
    """
    from .main import fail

    file = file or settings.report_path()
    if not file:
        return fail(
            "whose report? Name the FILE: a server writes its report as it stops, "
            f"where {settings.REPORT.name} says, and `vllm-ashutdown audit --json "
            "FILE` keeps those of the servers that it stops"
        )
    try:
        text = _read(file)
        report = ShutdownReport.from_json(_in_an_audit(text) or text)
    except OSError as error:
        return fail(
            f"cannot read {file}: {error.strerror}. A server writes its report as it "
            f"stops, where {settings.REPORT.name} says"
        )
    except _NoReportError:
        return fail(
            f"{file} is what an audit has written, of servers that wrote no report: "
            "vLLM's own stop has none, nor has one that is killed"
        )
    except ValueError as error:
        return fail(
            f"{file} is {error}. What belongs here is the file that a server writes "
            f"as it stops, where {settings.REPORT.name} says"
        )
    if html is not None:
        from .page import page

        try:
            _write(html, page(report))
        except OSError as error:
            return fail(f"cannot write {html}: {error.strerror}")
    if as_json:
        verdict = {"clean": report.clean, "problems": report.problems}
        print(json.dumps(verdict | json.loads(report.to_json()), indent=2))
    elif html is None:
        from rich.console import Console

        from .render import WIDTH, render

        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=WIDTH)
        console.print(render(report))
    elif html != STANDARD:
        print(f"{html}: {'clean' if report.clean else 'NOT CLEAN'}")
    return 0 if report.clean else EXIT_NOT_CLEAN


def _read(file: str) -> str:
    if file == STANDARD:
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("not a shutdown report: it is no text") from error


class _NoReportError(Exception):
    """An audit has written the file, and no server of it wrote a report."""


def _in_an_audit(text: str) -> str | None:
    """The last report among what an audit has written; ``None`` if none has.

    Raises:
        _NoReportError: one has, and there is no report in it.
    """
    try:
        found = json.loads(text)
    except ValueError:
        return None
    runs = found if isinstance(found, list) else [found]
    if not runs or not all(_is_a_run(one) for one in runs):
        return None
    reports = [one["report"] for one in runs if one["report"] is not None]
    if not reports:
        raise _NoReportError
    return json.dumps(reports[-1])


def _is_a_run(found: Any) -> bool:
    return isinstance(found, dict) and {"checks", "report"} <= set(found)


def _write(file: str, text: str) -> None:
    if file == STANDARD:
        sys.stdout.write(text)
    else:
        Path(file).write_text(text, encoding="utf-8")
