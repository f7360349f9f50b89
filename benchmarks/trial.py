"""One server that is started, loaded, ended in one way, and looked after."""

from __future__ import annotations

import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.floor import kill
from tests.clients import LONG, TYPED, WHOLE, Answer, Call, Clients
from tests.server import End, Server
from tests.topologies import TOPOLOGIES

__all__ = ["ABORT", "ARMS", "DRAIN", "FLOOR", "MODES", "OURS", "SHAPES", "STOCK"]
__all__ += ["Case", "Trial", "attempt"]

STOCK, OURS, FLOOR = "stock", "ours", "floor"
ARMS = (STOCK, OURS, FLOOR)
"""Who ends the server: vLLM alone, this package, or a SIGKILL to all of it."""

ABORT, DRAIN = "abort", "drain"
MODES = (ABORT, DRAIN)

SHAPES = {
    "one": "one server",
    "tp2": "tensor parallel 2",
    "dp2": "data parallel 2",
    "api2": "2 API servers",
    "dp2_api2": "data parallel 2 with 2 API servers",
}
"""Of `tests.topologies`, and what people call them."""

HANG_SECONDS = 15.0
"""After its drain time: what has not left by then hangs, and is killed."""

DRAIN_TOKENS = 400
"""Of each stream where the server drains: some seconds."""

SWITCHED_OFF = {"VLLM_ASHUTDOWN": "0"}


@dataclass(frozen=True, slots=True)
class Case:
    """What is stopped: a shape, under a load, in a mode."""

    shape: str
    mode: str
    streams: int

    def __str__(self) -> str:
        plural = "" if self.streams == 1 else "s"
        return f"{self.mode}, {self.streams} stream{plural}, {SHAPES[self.shape]}"


@dataclass(frozen=True, slots=True)
class Trial:
    """One start and one end.

    Attributes:
        case: What was stopped.
        arm: By whom.
        round: In which round, from 1 on.
        code: The exit code; None for a hang and where there was no stop.
        seconds: From the signal to the exit of the process that got it; for the floor
            to the end of the last process.
        gone: From the signal to the end of the last process.
        after_last_byte: From the last byte of the last stream to the exit; None
            without a stream, and for the floor.
        ends: How the streams ended, and how many so.
        error_lines: Of the log.
        leftovers: Processes, shared memory, temporary files, the port.
        failed: Why there was no stop to be measured; empty if there was.
        broken: The promises that it broke.
    """

    case: Case
    arm: str
    round: int
    code: int | None = None
    seconds: float = 0.0
    gone: float = 0.0
    after_last_byte: float | None = None
    ends: dict[str, int] = field(default_factory=dict)
    error_lines: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    failed: str = ""
    broken: list[str] = field(default_factory=list)

    @property
    def hung(self) -> bool:
        """Whether it had to be killed."""
        return self.code is None and not self.failed

    @property
    def counts(self) -> bool:
        """Whether its times do: it was stopped, and left by itself."""
        return self.code is not None

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Self:
        """Out of a file."""
        return cls(**{**said, "case": Case(**said["case"])})


def attempt(case: Case, arm: str, number: int, timeout: int) -> Trial:
    """Starts a server, loads it, and lets `arm` end it in round ``number``.

    Args:
        case: What is stopped.
        arm: By whom.
        number: Of the round.
        timeout: Of a drain, in seconds.
    """
    try:
        return _end(case, arm, number, timeout if case.mode == DRAIN else 0)
    except (RuntimeError, AssertionError) as error:
        # It did not start, or its streams did not flow: the machine's hour, or a fault
        # of the start. A campaign of a night does not end with it.
        why = str(error).strip() or type(error).__name__
        lines = why.splitlines()  # the end of its log comes behind the first
        told = " ".join(dict.fromkeys((lines[0], lines[-1])))
        return Trial(case, arm, number, failed=why, broken=[told])


def _end(case: Case, arm: str, number: int, timeout: int) -> Trial:
    with (
        tempfile.TemporaryDirectory(prefix="stops-") as directory,
        Server(
            Path(directory),
            *("--shutdown-timeout", str(timeout)),
            topology=TOPOLOGIES[case.shape],
            # Where all is killed, what ends when its parent does would end too early.
            environment={} if arm == OURS else SWITCHED_OFF,
        ) as server,
        Clients(server.address) as clients,
    ):
        with _load(server, clients, case) as answers:
            if arm == FLOOR:
                server.watch.look()
                floor = kill(list(server.watch.processes))
                lasting = [f"{floor.survivors} survived"] if floor.survivors else []
                return Trial(
                    *(case, arm, number, -signal.SIGKILL),
                    seconds=floor.seconds,
                    gone=floor.seconds,
                    broken=lasting,
                )
            server.signal(signal.SIGTERM)
            patience = timeout + HANG_SECONDS
            with ThreadPoolExecutor(1) as pool:
                last = pool.submit(server.gone_within, patience)
                end = server.wait(patience)
                gone, _ = last.result()
        return _judged(Trial(case, arm, number, end.code), server, end, gone, answers)


@contextmanager
def _load(server: Server, clients: Clients, case: Case) -> Iterator[list[Answer]]:
    """The streams of ``case`` in flight: some seconds from their end in a drain."""
    if not case.streams:
        yield []
        return
    drains = case.mode == DRAIN
    calls: list[Call] = [
        clients.raw_stream(
            "/v1/completions",
            start=100 * number % 1000 + number // 10,
            tokens=DRAIN_TOKENS if drains else LONG,
        )
        for number in range(case.streams)
    ]
    if drains:
        # Until all of them flow, lest the first is over by then.
        server.brake.pull()
    with clients.flowing(*calls) as answers:
        server.brake.release()
        yield answers


def _judged(
    trial: Trial, server: Server, end: End, gone: float, answers: Sequence[Answer]
) -> Trial:
    """``trial``, with what was found and what of that breaks a promise."""
    case = trial.case
    ends = Counter(answer.end[:60] for answer in answers)
    errors, leftovers = server.error_lines(), server.leftovers()
    broken = []
    if trial.hung:
        broken.append("hung")
    elif end.code != 0:
        broken.append(f"exit code {end.code}")
    proper = WHOLE if case.mode == DRAIN else TYPED
    if ends[proper] != case.streams:
        broken.append(f"{case.streams - ends[proper]} streams without a proper end")
    if errors:
        broken.append(f"{len(errors)} error lines")
    if leftovers:
        broken.append(f"{len(leftovers)} things left behind")
    if trial.arm == OURS and server.report_path.exists():
        # Of a process that had to be killed, say: it is not seen from outside.
        broken += [f"its report: {problem}" for problem in server.report.problems]
    last = max((answer.last_byte_at for answer in answers), default=None)
    return Trial(
        *(case, trial.arm, trial.round, end.code),
        seconds=end.seconds,
        gone=gone,
        after_last_byte=None if last is None else end.at - last,
        ends=dict(ends),
        error_lines=errors,
        leftovers=leftovers,
        broken=broken,
    )
