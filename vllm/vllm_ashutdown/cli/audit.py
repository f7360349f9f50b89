"""``vllm-ashutdown audit``: a server is stopped under load and looked at."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from ..audit.address import Address, CommandError, options_of
from ..audit.plan import How, Plan, Whom
from ..audit.run import Run, audit
from ..audit.server import GRACE_SECONDS, Server, ServerFailedError
from .audit_advice import advice, early_warnings
from .audit_options import option_names
from .audit_view import LOG_LINES, last_word, name_of, show, side_by_side
from .screen import Screen
from .words import printable

EXIT_BROKEN, EXIT_INTERRUPTED = 1, 130

_STOPPING = (
    f"\nInterrupted: the server stops, which may take {GRACE_SECONDS:.0f} s. "
    "Once more kills it.\n"
).encode()


def run(arguments: argparse.Namespace) -> int:
    """Does it and shows it.

    Returns:
        0 if all was as promised, 1 if not or if the server did not come up, 2 for a
        command that cannot be understood, 130 if it was interrupted.
    """
    from .main import fail

    if platform.system() != "Linux":
        return fail("an audit asks the kernel what only Linux tells (pidfd, /proc)")
    command = list(arguments.server)
    if command[:1] == ["--"]:
        del command[0]
    if not command:
        return fail(
            "the server's command is missing: vllm-ashutdown audit [options] -- "
            "vllm-ashutdown serve MODEL"
        )
    try:
        options = options_of(command, os.environ)
    except CommandError as error:
        return fail(str(error))
    plan = Plan(
        command=command,
        drain=options.drain,
        how=How(arguments.stop),
        whom=Whom(arguments.target),
        streams=arguments.streams,
        tokens=arguments.tokens,
        after=arguments.after,
        at=arguments.at,
        limit=arguments.limit,
        start_limit=arguments.start_limit,
    )
    if arguments.json is not None and (why := _cannot_write(arguments.json)):
        return fail(f"cannot write {arguments.json}: {why}")
    for words in early_warnings(command, option_names()):
        print(f"vllm-ashutdown: warning: {words}", file=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A server may say what the terminal's encoding has not.
        sys.stdout.reconfigure(errors="replace")
    screen = Screen()
    kinds = [True, False] if arguments.compare else [arguments.stock]
    runs: list[Run] = []
    code = None
    try:
        with _interruptible() as begun:
            for stock in kinds:
                screen.heading(name_of(stock))
                runs.append(_one(plan, options.address, screen, begun, stock=stock))
                show(runs[-1], screen)
    except ServerFailedError as error:
        for line in error.lines[-LOG_LINES:]:
            print(f"  {printable(line)}", file=sys.stderr)
        print(f"vllm-ashutdown: the server failed: {error}", file=sys.stderr)
        for words in advice(command, error.lines, option_names()):
            print(f"vllm-ashutdown: {words}", file=sys.stderr)
        code = EXIT_BROKEN
    except KeyboardInterrupt:
        print("\nInterrupted: the server is gone, no verdict.", file=sys.stderr)
        code = EXIT_INTERRUPTED
    if arguments.compare and code is None:
        screen.heading("Side by side")
        screen.say(side_by_side(runs), last_word(runs))
    if arguments.json is not None and not runs:
        print(f"Nothing was seen by then: no {arguments.json}.", file=sys.stderr)
    elif arguments.json is not None:
        try:
            Path(arguments.json).write_text(_json(runs), encoding="utf-8")
        except OSError as error:
            return fail(f"cannot write {arguments.json}: {error.strerror}")
        what = "All of it is" if len(runs) == len(kinds) else "What was seen by then is"
        print(f"\n{what} in {arguments.json}.", file=sys.stderr)
    if code is not None:
        return code
    return 0 if runs[-1].clean else EXIT_BROKEN


def _cannot_write(file: str) -> str | None:
    """Why nothing can be written there: better known before minutes of an audit."""
    path = Path(file)
    if path.is_dir():
        return "it is a directory"
    if not path.absolute().parent.is_dir():
        return "there is no such directory"
    there = path if path.exists() else path.absolute().parent
    return None if os.access(there, os.W_OK) else "permission denied"


def _one(
    plan: Plan,
    address: Address,
    screen: Screen,
    begun: list[Server],
    *,
    stock: bool,
) -> Run:
    with tempfile.TemporaryDirectory(
        prefix="audit-", ignore_cleanup_errors=True
    ) as scratch:
        directory = Path(scratch) / "tmp"
        directory.mkdir()
        return audit(plan, address, directory, screen, stock=stock, begun=begun.append)


@contextlib.contextmanager
def _interruptible() -> Iterator[list[Server]]:
    """Lets Ctrl-C, SIGTERM and a closed terminal end it: no server is left behind.

    Told again while it waits for the server to stop in order, it kills that.

    Yields:
        Where to note the servers that are begun, the last of which is meant.
    """
    told = False
    begun: list[Server] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal told
        if not told:
            told = True
            with contextlib.suppress(OSError):  # there is no terminal any more
                os.write(2, _STOPPING)
            raise KeyboardInterrupt
        for server in begun[-1:]:
            server.send(signal.SIGKILL)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield begun
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


# -- for programs ------------------------------------------------------------------


def _json(runs: Sequence[Run]) -> str:
    return json.dumps([_plain(one) for one in runs], indent=2) + "\n"


def _plain(one: Run) -> dict[str, Any]:
    plan = one.plan
    return {
        "stock": one.stock,
        "clean": one.clean,
        "command": list(plan.command),
        "stop": {
            "how": plan.how,
            "whom": plan.whom,
            "after": plan.after,
            "at": plan.at,
            "limit": plan.most,
        },
        "ready_after": one.ready_after,
        "exit_code": one.exit_code,
        "hung": one.exit_code is None,
        "times": dataclasses.asdict(one.times),
        "streams": [
            {
                "end": stream.end,
                "words": stream.words,
                "tokens": stream.tokens,
                "retryable": stream.retryable,
                "error": stream.error,
            }
            for stream in one.streams
        ],
        "rows": [dataclasses.asdict(row) for row in one.rows],
        "reclaimed": list(one.reclaimed),
        "checks": [dataclasses.asdict(check) for check in one.checks],
        "report": None if one.report is None else json.loads(one.report.to_json()),
    }
