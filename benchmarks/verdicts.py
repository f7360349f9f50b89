"""What is promised of the times of a stop, and whether the measurements bear it out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.trial import ABORT, DRAIN, FLOOR, OURS, STOCK, Case, Trial

__all__ = ["Verdict", "cases_of", "times_of", "verdicts"]

FROM_THE_FLOOR = 0.25
"""Seconds that a stop may take on top of what a SIGKILL of everything takes."""

SPREAD = 2.0
"""The worst of a case, in its medians."""

AFTER_LAST_BYTE = 0.3
"""Seconds that a server which has drained may still be there."""

PLAIN = Case("one", ABORT, 8)
"""The case that most servers are."""

Judge = Callable[[Case], tuple[float, str] | None]
"""How much of its bound a case uses, and in words; None where it was not measured."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One promise about times.

    Attributes:
        promise: In words.
        kept: Whether it is; None where it was not measured.
        found: What was measured.
    """

    promise: str
    kept: bool | None
    found: str

    def __str__(self) -> str:
        word = {True: "kept", False: "BROKEN", None: "not measured"}[self.kept]
        return f"{word}: {self.promise}" + (f": {self.found}" if self.found else "")


def cases_of(trials: Iterable[Trial]) -> list[Case]:
    """Each case once, in the order of the trials."""
    return list(dict.fromkeys(trial.case for trial in trials))


def times_of(
    trials: Iterable[Trial], case: Case, arm: str, name: str = "seconds"
) -> list[float]:
    """What one arm took in one case; a hang took no time.

    A kill is the same whatever the mode would have been: it was done in one of them.
    """
    found = []
    for trial in trials:
        other = trial.case
        same = other == case
        if arm == FLOOR:
            same = (other.shape, other.streams) == (case.shape, case.streams)
        value = getattr(trial, name)
        if trial.arm == arm and same and trial.counts and value is not None:
            found.append(float(value))
    return found


def verdicts(trials: Sequence[Trial]) -> Iterator[Verdict]:
    """One line each; what was not measured says so."""
    judges = _Judges(trials)
    aborts = [case for case in cases_of(trials) if case.mode == ABORT]
    drains = [case for case in cases_of(trials) if case.mode == DRAIN and case.streams]
    floor = f"ours' median is within {FROM_THE_FLOOR} s of the floor"
    spread = f"ours' worst is at most {SPREAD:g} times its median"
    last = f"ours' median exit is at most {AFTER_LAST_BYTE} s after the last byte"
    yield _verdict(f"{PLAIN}: ours' median is not above stock's", judges.stock, [PLAIN])
    yield _verdict(f"{PLAIN}: {spread}", judges.spread, [PLAIN])
    yield _verdict(f"{PLAIN}: {floor}", judges.floor, [PLAIN])
    yield _verdict(f"every abort: {spread}", judges.spread, aborts)
    yield _verdict(f"every abort: {floor}", judges.floor, aborts)
    yield _verdict(f"every drain: {last}", judges.last_byte, drains)


def _verdict(promise: str, judge: Judge, cases: Sequence[Case]) -> Verdict:
    """The worst of these cases decides."""
    found = [(judged, case) for case in cases if (judged := judge(case))]
    if not found:
        return Verdict(promise, None, "")
    (used, words), case = max(found, key=lambda one: one[0][0])
    where = "" if len(cases) == 1 else f"{case}: "
    return Verdict(promise, used <= 1.0, where + words)


class _Judges:
    """How each promise is held against one case."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._trials = trials

    def _times(self, case: Case, arm: str, name: str = "seconds") -> list[float]:
        return times_of(self._trials, case, arm, name)

    def stock(self, case: Case) -> tuple[float, str] | None:
        ours, stock = self._times(case, OURS), self._times(case, STOCK)
        runs = [one for one in self._trials if one.case == case and one.arm == STOCK]
        hung = sum(one.hung for one in runs)
        if not ours or not (stock or hung):
            return None
        mine = statistics.median(ours)
        if not stock:
            return 0.0, f"{mine:.3f} s, and stock's hung in each of {hung} runs"
        theirs = statistics.median(stock)
        words = f"{mine:.3f} s, stock's {theirs:.3f} s"
        if hung:
            words += f" where it did not hang, as {hung} of {len(runs)} did"
        return mine / theirs, words

    def spread(self, case: Case) -> tuple[float, str] | None:
        ours = self._times(case, OURS)
        if len(ours) < 2:
            return None
        median, worst = statistics.median(ours), max(ours)
        return worst / median / SPREAD, f"median {median:.3f} s, worst {worst:.3f} s"

    def floor(self, case: Case) -> tuple[float, str] | None:
        ours = self._times(case, OURS, "gone")
        floor = self._times(case, FLOOR)
        if not ours or not floor:
            return None
        mine, least = statistics.median(ours), statistics.median(floor)
        words = f"{mine:.3f} s to the last process, the floor is {least:.3f} s"
        return (mine - least) / FROM_THE_FLOOR, words

    def last_byte(self, case: Case) -> tuple[float, str] | None:
        ours = self._times(case, OURS, "after_last_byte")
        if not ours:
            return None
        median = statistics.median(ours)
        words = f"median {median:.3f} s, worst {max(ours):.3f} s"
        return median / AFTER_LAST_BYTE, words
