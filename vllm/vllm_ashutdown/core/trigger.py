"""What asked for a stop."""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass


class TriggerKind(enum.StrEnum):
    """The four kinds of things that start a stop or raise it."""

    SIGNAL = "signal"
    CALL = "call"
    DEATH = "death"
    WATCHDOG = "watchdog"


@dataclass(frozen=True, slots=True)
class Trigger:
    """One request to stop, as the log and the report name it."""

    kind: TriggerKind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} {self.detail}"

    @classmethod
    def signal(cls, number: int) -> Trigger:
        """A POSIX signal that reached this process."""
        return cls(TriggerKind.SIGNAL, signal.Signals(number).name)

    @classmethod
    def call(cls, detail: str) -> Trigger:
        """A call in the program, named after what was called."""
        return cls(TriggerKind.CALL, detail)

    @classmethod
    def death(cls, detail: str) -> Trigger:
        """A process of the engine ended and nobody had asked it to."""
        return cls(TriggerKind.DEATH, detail)
