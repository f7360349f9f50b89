"""What each benchmark has found, as a section: plots, tables and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.costs import load, race, scale, serve
from benchmarks.figures import Median
from benchmarks.plots import Point, Row, scatter, strip
from benchmarks.record import Record
from benchmarks.section import (
    Found,
    Section,
    Table,
    flat,
    groups,
    kept,
    median,
    table_by,
)
from benchmarks.trial import ARMS, DRAIN, FLOOR, OURS, SHAPES, STOCK, Trial
from benchmarks.verdicts import Verdict, cases_of, times_of, verdicts

__all__ = ["SECTIONS", "section_of"]


def stops(found: Found) -> Section:
    """Of `benchmarks/stops.py`."""
    trials = [Trial.from_json(one) for one in flat(found)]
    cases = cases_of(trials)
    rows = []
    for case in cases:
        cells = [str(case)]
        for arm in (STOCK, OURS):
            own = [one for one in trials if one.case == case and one.arm == arm]
            stopped = [one for one in own if not one.failed]
            seconds = times_of(trials, case, arm)
            cells += [
                median(seconds),
                f"{max(seconds):.3f}" if seconds else "-",
                f"{sum(one.hung for one in stopped)} of {len(stopped)}",
                str(sum(len(one.error_lines) for one in own)),
                str(sum(len(one.leftovers) for one in own)),
            ]
        rows.append([*cells, median(times_of(trials, case, FLOOR))])
    each = ("worst", "hung", "error lines", "left behind")
    headings = ["", f"{STOCK}, s", *each, f"{OURS}, s", *each, "floor, s"]
    plots = []
    for shape, name in SHAPES.items():
        lanes = [
            Row(
                f"{case.mode}, {case.streams} streams",
                {
                    arm: times_of(
                        trials,
                        case,
                        arm,
                        # A drain's own length is its streams'.
                        "after_last_byte"
                        if case.mode == DRAIN and case.streams and arm != FLOOR
                        else "seconds",
                    )
                    for arm in ARMS
                },
            )
            for case in cases
            if case.shape == shape
        ]
        if lanes:
            plots.append(strip(name, lanes, "s"))
    broken = [
        Verdict("stops of ours that broke a promise", False, f"{one.case}: {line}")
        for one in trials
        if one.arm == OURS
        for line in one.broken
    ]
    return Section(
        "A stop, side by side",
        "From SIGTERM to the exit; in a drain with streams from their last byte. The "
        "floor is a SIGKILL of every process at once.",
        plots,
        [Table(headings, rows)],
        [*verdicts(trials), *broken],
        ARMS,
    )


def floor(found: Found) -> Section:
    """Of `benchmarks/floor.py`."""
    runs = flat(found)
    seconds = [one["seconds"] for one in runs]
    row = (
        str(len(runs)),
        Median.of(seconds).text(),
        f"{min(seconds):.3f}",
        f"{max(one['resident'] for one in runs) / 1e6:,.0f}",
        str(sum(one["survivors"] for one in runs)),
    )
    return Section(
        "The floor",
        "SIGKILL to every process of a server, until the last one is over.",
        [strip("seconds to the end", [Row("SIGKILL", {FLOOR: seconds})], "s")],
        [Table(("runs", "median, s", "fastest", "resident, MB", "survivors"), [row])],
    )


def instants(found: Found) -> Section:
    """Of `benchmarks/instants.py`."""
    runs = flat(found)
    bad = [run for run in runs if run["broken"]]
    points = [
        Point(
            run["instant"],
            run["seconds"],
            "broken" if run["broken"] else OURS,
            f"{run['stage']}: {run['seconds']:.3f} s",
        )
        for run in runs
    ]
    about = f"SIGTERM to a server at {len(runs)} instants, from its start on."
    return Section(
        "At any instant",
        about,
        [scatter("seconds by instant", points, "s after the start", "s to the exit")],
        [table_by(runs, "stage", "signalled while")],
        [kept(runs, bad, lambda run: f"at {run['instant']:.1f} s")],
        (OURS, "broken"),
    )


def faults(found: Found) -> Section:
    """Of `benchmarks/faults.py`."""
    runs = [{**run, "kind": _kind_of(run["fault"])} for run in flat(found)]
    bad = [run for run in runs if run["broken"]]
    lanes = [
        Row(
            kind,
            {
                OURS: [r["seconds"] for r in own if not r["broken"]],
                "broken": [r["seconds"] for r in own if r["broken"]],
            },
        )
        for kind, own in groups(runs, "kind")
    ]
    return Section(
        "Random faults",
        f"{len(runs)} signals to a process, or to all, of servers of some shape, at "
        "random moments of their lives. From the last signal to the last process.",
        [strip("seconds by what was signalled", lanes, "s")],
        [table_by(runs, "kind", "signal")],
        [kept(runs, bad, lambda run: str(run["fault"]))],
        (OURS, "broken"),
    )


def _kind_of(fault: str) -> str:
    """``one, start + 3.12 s: SIGTERM to the top`` is a SIGTERM while it starts."""
    where, _, what = fault.partition(": ")
    moment = where.rpartition(", ")[2].partition(" ")[0]
    return f"{what.partition(' ')[0]}, {moment}"


def smoke(found: Found) -> Section:
    """Of `benchmarks/smoke.py`."""
    from benchmarks.smoke import Smoke

    releases = [Smoke.from_json(one) for one in flat(found)]
    names = list(releases[0].checks)
    rows = [(name, *(one.checks[name] for one in releases)) for name in names]
    bad = [one.release for one in releases if not one.passed]
    return Section(
        "Every release",
        "A real server of each, with four streams, aborted and drained.",
        tables=[Table(("", *(one.release for one in releases)), rows)],
        verdicts=[Verdict("every release passes", not bad, ", ".join(bad))],
    )


SECTIONS: dict[str, Callable[[Found], Section]] = {
    "stops": stops,
    "floor": floor,
    "instants": instants,
    "faults": faults,
    "smoke": smoke,
    "race": race,
    "scale": scale,
    "load": load,
    "serve": serve,
}
"""By the benchmark, in the order of the page."""


def section_of(records: Sequence[Record]) -> Section:
    """That of one benchmark, out of all of its records: parts are one whole."""
    return SECTIONS[records[0].benchmark]([one.found for one in records])
