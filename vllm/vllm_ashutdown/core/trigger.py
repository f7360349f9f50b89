"""What asked for a stop."""

from __future__ import annotations

import enum
import signal
from collections.abc import Mapping

from msgspec import Struct


class TriggerKind(enum.StrEnum):
    """The four kinds of things that start a stop or raise it."""

    SIGNAL = "signal"
    CALL = "call"
    DEATH = "death"
    WATCHDOG = "watchdog"


class Trigger(Struct, frozen=True):
    """One request to stop, as the log and the report name it."""

    kind: TriggerKind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} {self.detail}"

    def plain(self) -> dict[str, str]:
        """For a message or a report."""
        return {"kind": str(self.kind), "detail": self.detail}

    @classmethod
    def parse(cls, value: Mapping[str, str]) -> Trigger:
        """The trigger that :meth:`plain` wrote.

        Raises:
            KeyError: something is missing.
            ValueError: there is no such kind.
        """
        return cls(TriggerKind(value["kind"]), value["detail"])

    @classmethod
    def signal(cls, number: int, to: str = "") -> Trigger:
        """A POSIX signal that reached this process, or the process ``to`` below it."""
        name = signal.Signals(number).name
        return cls(TriggerKind.SIGNAL, f"{name} to {to}" if to else name)

    @classmethod
    def call(cls, detail: str) -> Trigger:
        """A call in the program, named after what was called."""
        return cls(TriggerKind.CALL, detail)

    @classmethod
    def death(cls, detail: str) -> Trigger:
        """A process of the engine ended and nobody had asked it to."""
        return cls(TriggerKind.DEATH, detail)
