"""What a stop did, as a value: the answer that can be checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from .mode import Mode
from .phase import Outcome, Phase, PhaseRecord
from .trigger import Trigger

if TYPE_CHECKING:
    # Whoever reads a report of its processes alone has no use for the probes.
    from ..inventory import Row


class RequestCounts(Struct):
    """What became of the requests, counted from the first trigger on.

    A drain that was prepared before it counts, too.

    Attributes:
        completed: Came to their own end while the engine drained (or their
            client went). One of n sequences counts n times, here and below.
        aborted: Got their terminal event from the stop.
        refused: Came too late and were refused at the door.
    """

    completed: int = 0
    aborted: int = 0
    refused: int = 0


class ProcessEnd(Struct, frozen=True, eq=False):
    """How one process of the engine ended.

    Attributes:
        name: vLLM's name for it, for example ``EngineCore``.
        pid: Its process id.
        exitcode: As :attr:`multiprocessing.Process.exitcode` has it: negative
            for a signal, ``None`` while it lives.
        killed: It outlasted its share of the budget and was killed by the stop.
        ended: When it was over, in seconds by :func:`time.monotonic`, which all
            processes of a machine share; in a report, in seconds from the first
            trigger. ``None`` while it lives, and where nobody saw it. Two that
            ended alike are equal, whenever they did.
    """

    name: str
    pid: int
    exitcode: int | None
    killed: bool = False
    ended: float | None = None

    def __eq__(self, other: object) -> bool:
        """Whether the same process ended in the same way, whenever that was seen."""
        if not isinstance(other, ProcessEnd):
            return NotImplemented
        return self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        return self.name, self.pid, self.exitcode, self.killed

    @property
    def clean(self) -> bool:
        """It left by itself, with success."""
        return self.exitcode == 0 and not self.killed

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.exitcode is None:
            return "still alive"
        if self.killed:
            return "killed: outlasted its share of the budget"
        if self.exitcode < 0:
            return f"ended by signal {-self.exitcode}"
        return f"exit {self.exitcode}"

    def over_at(self, moment: float) -> ProcessEnd:
        """The same, of which it is known when."""
        return structs.replace(self, ended=moment)

    def since(self, moment: float) -> ProcessEnd:
        """The same, with its end counted from ``moment``; never before that."""
        if self.ended is None:
            return self
        return self.over_at(max(0.0, self.ended - moment))

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}): {self.how}"


class ShutdownReport(Struct, frozen=True):
    """One stop of one engine.

    Attributes:
        trigger: What asked first.
        mode: The mode it began with.
        final_mode: The mode it ended in; stronger than ``mode`` where it was
            raised on the way.
        seconds: From the first trigger to the end of the audit.
        phases: One record a phase, in the order.
        requests: What became of the requests.
        processes: How each process of the engine ended.
        leftovers: What the audit still found, one line each; empty is clean.
        inventory: One row for each kind of resource: what there was when the core
            was about to stop, and what there was at the end.
    """

    trigger: Trigger
    mode: Mode
    final_mode: Mode
    seconds: float
    phases: tuple[PhaseRecord, ...]
    requests: RequestCounts
    processes: tuple[ProcessEnd, ...] = ()
    leftovers: tuple[str, ...] = ()
    inventory: tuple[Row, ...] = ()

    @property
    def clean(self) -> bool:
        """It came to its end, and nothing failed, expired, was killed or is left.

        A drain whose deadline came is clean: that is what deadlines are for.
        """
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """Why it is not clean, one line for each reason; empty if it is."""
        found = []
        for record in self.phases:
            late = record.outcome is Outcome.EXPIRED
            if record.outcome is Outcome.FAILED:
                why = f": {record.detail}" if record.detail else ""
                found.append(f"phase {record.phase} failed{why}")
            elif late and record.phase is not Phase.DRAIN:
                found.append(f"phase {record.phase} used up its time")
        if not any(record.phase is Phase.AUDIT for record in self.phases):
            found.append("it did not come to its end: nothing was audited")
        found += [str(process) for process in self.processes if not process.clean]
        return (*found, *self.leftovers)

    @property
    def summary(self) -> str:
        """One line for a log."""
        mode = str(self.mode)
        if self.final_mode is not self.mode:
            mode += f", raised to {self.final_mode}"
        counts = self.requests
        left = "; ".join(self.leftovers) or "nothing left"
        return (
            f"{self.trigger}, {mode}; requests {counts.completed} completed, "
            f"{counts.aborted} ended, {counts.refused} refused; {left}"
        )

    def with_http(
        self, record: PhaseRecord, seconds: float, refused: int = 0
    ) -> ShutdownReport:
        """The report of a server: of its engine, and of HTTP around it."""
        requests = structs.replace(
            self.requests, refused=self.requests.refused + refused
        )
        at = next(
            (i for i, one in enumerate(self.phases) if one.phase is Phase.AUDIT),
            len(self.phases),
        )
        phases = (*self.phases[:at], record, *self.phases[at:])
        return structs.replace(self, phases=phases, seconds=seconds, requests=requests)

    def to_json(self) -> str:
        """The report as one JSON object; infinite spans become ``null``."""
        return json.dumps(_plain(self))

    @classmethod
    def from_json(cls, text: str) -> ShutdownReport:
        """The report that :meth:`to_json` wrote.

        Raises:
            ValueError: ``text`` is no such report.
        """
        from ..inventory import Row

        try:
            data = _object(json.loads(text))
            return cls(
                trigger=Trigger.parse(data["trigger"]),
                mode=Mode.parse(data["mode"]),
                final_mode=Mode.parse(data["final_mode"]),
                seconds=_seconds(data["seconds"]),
                phases=tuple(map(_phase, data["phases"])),
                requests=RequestCounts(**data["requests"]),
                processes=tuple(map(_process, data["processes"])),
                leftovers=tuple(_lines(data["leftovers"])),
                inventory=tuple(map(Row.from_plain, data["inventory"])),
            )
        except json.JSONDecodeError as error:
            raise ValueError(f"not a shutdown report: no JSON ({error})") from error
        except KeyError as error:
            raise ValueError(f"not a shutdown report: it has no {error}") from error
        except (TypeError, ValueError) as error:
            raise ValueError(f"not a shutdown report: {error}") from error


def _object(data: Any) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise TypeError("it is no JSON object")
    return data


def _phase(row: Mapping[str, Any]) -> PhaseRecord:
    return PhaseRecord(
        Phase(row["phase"]),
        math.inf if row["requested"] is None else _seconds(row["requested"]),
        _seconds(row["spent"]),
        Outcome(row["outcome"]),
        _text(row["detail"]),
        _seconds(row["began"]),
    )


def _process(row: Mapping[str, Any]) -> ProcessEnd:
    code, ended = row["exitcode"], row.get("ended")  # earlier releases noted no time
    return ProcessEnd(
        _text(row["name"]),
        int(row["pid"]),
        None if code is None else int(code),
        bool(row["killed"]),
        None if ended is None else _seconds(ended),
    )


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not math.isfinite(seconds):
        raise ValueError(f"{value!r} is no span of time")
    return seconds


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _lines(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list of lines")
    return [_text(line) for line in value]


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        value = structs.asdict(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mode):
        return str(value)
    if isinstance(value, float) and math.isinf(value):
        return None
    return value
