"""``vllm-ashutdown doctor``: everything about a stop that can be known before one."""

from __future__ import annotations

import dataclasses
import json
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..core.reclaim import reclaim
from ..doctor.configuration import configuration
from ..doctor.finding import Finding, Level, has_problem
from ..doctor.installation import installation
from ..doctor.machine import machine
from ..doctor.surroundings import surroundings
from .render import WIDTH
from .seams import states
from .words import printable

EXIT_PROBLEM = 1
"""One of the findings is a problem."""

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def show(*, drain: float, unit: str | None, as_json: bool) -> int:
    """Prints what was found.

    Args:
        drain: The server's ``--shutdown-timeout``, in seconds.
        unit: The systemd unit that it runs in, if it is not this process's.
        as_json: For programs.

    Returns:
        0, or 1 if one of the findings is a problem.
    """
    with _waiting():
        findings = [
            *installation(states),
            *configuration(),
            *surroundings(drain, unit),
            *machine(reclaim(remove=False)),
        ]
    if as_json:
        words = {
            "problem": has_problem(findings),
            "findings": [dataclasses.asdict(one) for one in findings],
        }
        print(json.dumps(words, indent=2))
    else:
        console = Console(highlight=False)
        if not console.is_terminal or console.width > WIDTH:
            console = Console(highlight=False, width=WIDTH)
        console.print(_table(findings), _verdict(findings))
    return EXIT_PROBLEM if has_problem(findings) else 0


def _waiting() -> AbstractContextManager[object]:
    """Shows on a terminal that something is going on: vLLM's import takes its time."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return nullcontext()
    return console.status("vLLM is being imported, to look at it")


def _table(findings: list[Finding]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=36)
    table.add_column(overflow="fold")
    for one in findings:
        words = Text(printable(one.found))
        if one.remedy:
            words.append(f"\n{printable(one.remedy)}", "bold")
        table.add_row(Text(one.level, _STYLES[one.level]), printable(one.topic), words)
    return table


def _verdict(findings: list[Finding]) -> Text:
    problems, warnings = (
        sum(one.level is level for one in findings)
        for level in (Level.PROBLEM, Level.WARNING)
    )
    if not problems and not warnings:
        return Text("\nNothing to do.", "bold green")
    words = f"\n{_counted(problems, 'problem')}, {_counted(warnings, 'warning')}"
    return Text(words, "bold red" if problems else "bold yellow")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
