"""One act of the demonstration: start, ask, load, SIGTERM, and a look at the end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from ..audit.address import Address
from ..audit.plan import Plan
from ..audit.run import Run, audit
from ..audit.server import Server, ServerFailedError, free_port
from ..audit.streams import End, Stream
from ..audit.verdict import Check
from ..cli.render import render
from ..cli.screen import Screen, check_table, error_lines, stream_table
from ..cli.words import span
from .checkpoint import MODEL_NAME
from .streams import QUESTION, ask, streams

LOG_LINES = 25


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
    address = Address(port=free_port())
    opened: list[Stream] = []

    def load(server: Server) -> Sequence[Stream]:
        screen.say(f"vLLM serves on port {address.port}.", "")
        answer = ask(address, QUESTION)
        screen.say(
            Text.assemble(("Question  ", "dim"), QUESTION),
            Text.assemble(("Answer    ", "dim"), (answer, "bold")),
            "",
        )
        opened.extend(streams(address, act.max_tokens))
        return opened

    try:
        run = audit(_plan(act, model, address), address, directory, screen, load=load)
    except ServerFailedError as error:
        _show_log(error.lines, screen)
        raise
    screen.say("")
    if run.report is not None:
        screen.say(render(run.report), "")
    screen.say(stream_table(opened), *error_lines(opened), "")
    checks = [_promise(act, run), *run.checks]
    screen.say(Text("Seen from outside", "bold"), check_table(checks))
    if not run.clean:
        _show_log(run.lines, screen)
    return checks


def _plan(act: Act, model: Path, address: Address) -> Plan:
    command = [sys.executable, "-m", "vllm_ashutdown.cli", "serve", str(model)]
    command += ["--enforce-eager"]
    options = {
        "--host": address.host,
        "--port": str(address.port),
        "--served-model-name": MODEL_NAME,
        "--shutdown-timeout": str(act.shutdown_timeout),
    }
    for name, value in options.items():
        command += [name, value]
    environment = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    return Plan(command, drain=act.shutdown_timeout, environment=environment)


def _promise(act: Act, run: Run) -> Check:
    """What this act says of its streams, in particular."""
    count = len(run.streams)
    wanted = End.COMPLETED if act.drains else End.ENDED
    kept = sum(stream.end is wanted for stream in run.streams)
    promise = (
        "every stream completed, with [DONE]"
        if act.drains
        else "every stream got the typed error"
    )
    return Check(kept == count, promise, f"{kept} of {count} {wanted}")


def _show_log(lines: Sequence[str], screen: Screen) -> None:
    screen.say(Text("The last lines of its log:", "bold"))
    for line in lines[-LOG_LINES:]:
        screen.say(Text("  " + line, "dim"))


def total(checks: Sequence[Check], seconds: float) -> str:
    """One line for an act that is over."""
    failed = [check.promise for check in checks if not check.kept]
    if not failed:
        return f"all {len(checks)} promises kept, played in {span(seconds)}"
    return "not kept: " + "; ".join(failed)
