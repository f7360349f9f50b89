"""One act of the demonstration: start, ask, load, SIGTERM, and a look at the end."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from ..cli.render import render
from ..cli.words import span
from ..core.report import ShutdownReport
from .screen import Screen, check_table, error_lines, since, stream_table
from .server import Server, ServerFailedError
from .streams import PROMPTS, QUESTION, Stream, ask, client
from .traces import Leftovers, Traces

TOKENS_FIRST = 8
"""So many tokens of each stream come before the signal."""

FIRST_TOKENS_SECONDS = 120.0
STOP_MARGIN_SECONDS = 30.0
"""Beyond the drain time; a server that takes longer hangs."""

LOG_LINES = 25

Check = tuple[bool, str, str]


@dataclass(frozen=True, slots=True)
class Act:
    """What one stop is given, and what it promises.

    Attributes:
        title: For people.
        meaning: The promise, in a sentence.
        shutdown_timeout: vLLM's option of this name: 0 aborts, more drains.
        max_tokens: The length of the answers: for a drain, one that ends in time.
    """

    title: str
    meaning: str
    shutdown_timeout: int
    max_tokens: int

    @property
    def drains(self) -> bool:
        """Whether streams run on to their own end."""
        return self.shutdown_timeout > 0


ACTS = (
    Act(
        title="Drain: --shutdown-timeout 300",
        meaning="Every stream in flight runs on to its own end, then the server goes.",
        shutdown_timeout=300,
        max_tokens=128,
    ),
    Act(
        title="Abort: --shutdown-timeout 0, vLLM's default",
        meaning="Every stream ends now, with an error that says: safe to retry.",
        shutdown_timeout=0,
        max_tokens=800,
    ),
)


def play(act: Act, model: Path, directory: Path, screen: Screen) -> list[Check]:
    """Plays one act.

    Args:
        act: Which.
        model: The checkpoint to serve.
        directory: An empty place for the server's temporary files.
        screen: Where it is shown.

    Returns:
        What was promised, and whether it was found so.

    Raises:
        ServerFailedError: the server did not come up; its log has been shown.
    """
    traces = Traces()
    began = time.monotonic()
    with screen.working("Starting vLLM") as stage:
        server = Server(model, directory, act.shutdown_timeout, stage)
        try:
            server.wait_ready()
        except BaseException as error:
            stage("stopping it")
            server.remove()
            if isinstance(error, ServerFailedError):
                _show_log(server, screen)
            raise
    try:
        screen.say(
            f"vLLM serves on port {server.port}, "
            f"{since(began, time.monotonic())} after its start.\n"
        )
        return _stop(act, server, traces, screen)
    finally:
        server.remove()


def _stop(act: Act, server: Server, traces: Traces, screen: Screen) -> list[Check]:
    api = client(server.port)
    screen.say(
        Text.assemble(("Question  ", "dim"), QUESTION),
        Text.assemble(("Answer    ", "dim"), (ask(api, QUESTION), "bold")),
        "",
    )
    streams = [Stream(api, prompt, act.max_tokens) for prompt in PROMPTS]
    for stream in streams:
        stream.start()
    with screen.following("Opening 8 streams", streams):
        deadline = time.monotonic() + FIRST_TOKENS_SECONDS
        for stream in streams:
            stream.wait_for(TOKENS_FIRST, deadline - time.monotonic())
    flowing = sum(not stream.over.is_set() for stream in streams)
    traces.look(server.pid)
    signalled = server.send(signal.SIGTERM)
    screen.say(f"{flowing} streams are open. SIGTERM sent.")
    with screen.following("Stopping", streams):
        in_time = server.wait_ended(act.shutdown_timeout + STOP_MARGIN_SECONDS)
    if not in_time:
        screen.say(stream_table(streams), "")
        checks = [
            *_promises(act, flowing, streams),
            (False, "the server ends", "it still runs, and is killed"),
        ]
        screen.say(Text("Seen from outside", "bold"), check_table(checks), "")
        _show_log(server, screen)
        return checks
    left = traces.left(server.pid, server.port, server.directory)
    for stream in streams:
        # What a dead server has sent is there by now; this lets the readers read it.
        stream.over.wait(5)
    report, problem = _report(server)
    screen.say("")
    if report is not None:
        screen.say(render(report), "")
    screen.say(stream_table(streams), *error_lines(streams), "")
    checks = [
        *_promises(act, flowing, streams),
        _exit_check(server, signalled, streams),
        *_left_checks(left, signalled),
        (not problem, "the server's own report is clean", problem or "it is"),
    ]
    screen.say(Text("Seen from outside", "bold"), check_table(checks))
    if server.exit_code != 0:
        _show_log(server, screen)
    return checks


def _report(server: Server) -> tuple[ShutdownReport | None, str]:
    text = server.report_text
    if text is None:
        return None, "it wrote none"
    try:
        report = ShutdownReport.from_json(text)
    except ValueError as error:
        return None, str(error)
    return report, "" if report.clean else report.summary


def _promises(act: Act, flowing: int, streams: list[Stream]) -> list[Check]:
    count = len(streams)
    if act.drains:
        kept = sum(stream.completed for stream in streams)
        promise, word = "every stream completed, with [DONE]", "completed"
    else:
        kept = sum(stream.ended for stream in streams)
        promise, word = "every stream got the typed error", "ended by error 503"
    return [
        (flowing == count, "open at the signal", f"{flowing} of {count}"),
        (kept == count, promise, f"{kept} of {count} {word}"),
    ]


def _exit_check(server: Server, signalled: float, streams: list[Stream]) -> Check:
    last = max(stream.over_at for stream in streams)
    found = (
        f"{server.exit_code}, {since(signalled, server.ended_at)} after the signal, "
        f"{since(last, server.ended_at)} after the last stream"
    )
    return server.exit_code == 0, "exit code 0", found


def _left_checks(left: Leftovers, signalled: float) -> list[Check]:
    def nothing(promise: str, found: tuple[str, ...], otherwise: str) -> Check:
        if not found:
            return True, promise, otherwise
        more = ", ..." if len(found) > 1 else ""
        return False, promise, f"{len(found)} left: {found[0]}{more}"

    gone = f"all {left.watched} gone {since(signalled, left.gone_at)} after the signal"
    return [
        nothing("no process left", left.processes, gone),
        nothing("no shared memory left", left.shared_memory, "nothing new in /dev/shm"),
        nothing("no ipc socket file left", left.sockets, "none"),
        nothing("no temporary file left", left.files, "none"),
        (not left.port, "port free at once", left.port or "refuses, can be bound"),
    ]


def _show_log(server: Server, screen: Screen) -> None:
    screen.say(Text(f"The last lines of its log (pid {server.pid}):", "bold"))
    for line in list(server.lines)[-LOG_LINES:]:
        screen.say(Text("  " + line, "dim"))


def total(checks: list[Check], seconds: float) -> str:
    """One line for an act that is over."""
    failed = [promise for kept, promise, _ in checks if not kept]
    if not failed:
        return f"all {len(checks)} promises kept, played in {span(seconds)}"
    return "not kept: " + "; ".join(failed)
