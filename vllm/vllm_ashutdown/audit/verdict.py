"""What a stop must be, held against what was seen of it from outside."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..core.report import ShutdownReport
from ..exit_code import ExitCode
from .plan import Plan
from .streams import End, Result
from .traces import ADDRESS, Row

OPEN = "open at the stop"
"""What makes the stop one under load."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, and what was found.

    Attributes:
        kept: It was found so.
        promise: In a few words.
        found: In a few words.
    """

    kept: bool
    promise: str
    found: str


@dataclass(frozen=True, slots=True)
class Times:
    """When things were over, in seconds from the stop; ``None`` where they were not.

    Attributes:
        first_stream: The first stream.
        last_stream: The last of those that were over at all.
        exit: The top process.
        gone: The last process.
    """

    first_stream: float | None = None
    last_stream: float | None = None
    exit: float | None = None
    gone: float | None = None


def checks(
    plan: Plan,
    *,
    exit_code: int | None,
    streams: Sequence[Result],
    flowing: int,
    rows: Sequence[Row],
    report: ShutdownReport | None,
    report_problem: str,
) -> tuple[Check, ...]:
    """Everything that a stop promises, in the order in which people ask for it.

    Args:
        plan: How it was stopped.
        exit_code: Of the top process; ``None`` if it hung and was killed.
        streams: All that were opened.
        flowing: How many of them had tokens and were not over at the stop.
        rows: What was seen on the machine.
        report: The server's own.
        report_problem: Why there is none, if one must be there.
    """
    found = [_ends(plan, exit_code)]
    if streams:
        found += _streams(plan, streams, flowing)
    left = [_left(row) for row in rows]
    # That streams were over by then is the load's fault, and no lie of the server.
    kept = all(one.kept for one in (*found, *left) if one.promise != OPEN)
    if exit_code is not None:
        found.append(_exit(plan, exit_code, kept=kept))
    if report is not None:
        words = "; ".join(report.problems) or "it is"
        found.append(Check(report.clean, "its own report is clean", words))
        if report.clean and not kept:
            found.append(
                Check(False, "its own report is true", "clean, and not so from outside")
            )
    elif report_problem:
        found.append(Check(False, "its own report is clean", report_problem))
    return (*found, *left)


def _ends(plan: Plan, exit_code: int | None) -> Check:
    if exit_code is None:
        words = f"it still runs after {plan.most:g} s, and is killed"
        return Check(False, "the server ends", words)
    return Check(True, "the server ends", "it does")


def _streams(plan: Plan, streams: Sequence[Result], flowing: int) -> Iterator[Check]:
    count, ends = len(streams), [stream.end for stream in streams]
    words = f"{flowing} of {count}"
    if flowing < count:
        words += "; it could not be seen what becomes of the others: more --tokens?"
    yield Check(flowing == count, OPEN, words)
    open_ = ends.count(End.OPEN)
    yield Check(not open_, "no stream waits for ever", f"{open_} still open")
    lied = ends.count(End.LIED)
    yield Check(not lied, "none ends like a success though cut", f"{lied} did")
    if plan.how.is_orderly:
        told = sum(end.is_honest for end in ends)
        yield Check(
            told == count, "each was told how it ended", f"{told} of {count} were"
        )
        ended = [stream for stream in streams if stream.end is End.ENDED]
        safe = sum(stream.retryable for stream in ended)
        if ended:
            yield Check(
                safe == len(ended),
                "those that were ended may be retried",
                f"{safe} of {len(ended)} were told so",
            )


def _left(row: Row) -> Check:
    free = row.name == ADDRESS
    promise = "its address is free" if free else f"no {row.name} left"
    if not row.after:
        nothing = (
            "refuses, can be bound"
            if free
            else f"{len(row.during)} while it ran, none now"
        )
        return Check(True, promise, nothing)
    more = f" and {len(row.after) - 1} more" if len(row.after) > 1 else ""
    return Check(False, promise, f"{row.after[0]}{more}")


def _exit(plan: Plan, code: int, *, kept: bool) -> Check:
    if not plan.how.is_orderly:
        killed = code == -signal.SIGKILL
        return Check(killed, "exit code says that it was killed", str(code))
    if code == ExitCode.STOPPED:
        words = "0" if kept else "0, but the stop was not what it should be"
        return Check(kept, "exit code tells the truth", words)
    # Before a program has its handlers, a signal does what signals do.
    by_signal = (-plan.how.number, 128 + plan.how.number)
    honest = plan.at is not None and code in by_signal
    return Check(honest, "exit code says that it was asked to", str(code))
