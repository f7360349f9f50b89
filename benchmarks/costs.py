"""The sections of the benchmarks that stop no real server."""

from __future__ import annotations

import statistics

from benchmarks.figures import Line, Median
from benchmarks.load import packages
from benchmarks.plots import Point, Row, scatter, strip
from benchmarks.section import Found, Section, Table, flat, median
from benchmarks.trial import OURS, STOCK
from benchmarks.verdicts import Verdict

__all__ = ["load", "race", "scale", "serve"]


def load(found: Found) -> Section:
    """Of `benchmarks/load.py`."""
    costs = [cost for one in found for cost in one["costs"]]
    broken = [line for one in found for line in one["broken"]]
    rows = [
        (
            cost["role"],
            Median(**cost["milliseconds"]).text(1),
            f"{cost['milliseconds']['value'] / 1e3 / cost['vllm']:.2%}",
            Median(**cost["later"]).text(1),
            Median(**cost["megabytes"]).text(2),
            str(cost["own"]),
            packages(cost["third_party"]),
        )
        for cost in costs
    ]

    def bars(what: str) -> list[Row]:
        return [Row(one["role"], {OURS: [one[what]["value"]]}) for one in costs]

    promise = "no process pays more than 30 ms and 5 MB"
    return Section(
        "What loading it costs",
        "In processes begun for it, right behind what vLLM imports itself.",
        [
            strip("milliseconds", bars("milliseconds"), "ms", 30.0),
            strip("megabytes", bars("megabytes"), "MB", 5.0),
        ],
        [
            Table(
                (
                    "",
                    "ms",
                    "of vLLM's own",
                    "later, ms",
                    "MB",
                    "modules",
                    "third party",
                ),
                rows,
            )
        ],
        [Verdict(promise, not broken, "; ".join(broken))],
    )


def scale(found: Found) -> Section:
    """Of `benchmarks/scale.py`."""
    runs = [run for one in found for run in one["runs"] if not run["peak"]]
    peaks = [run for one in found for run in one["runs"] if run["peak"]]
    broken = [line for one in found for line in one["broken"]]
    rows, fastest = [], []
    for size in sorted({run["size"] for run in runs}):
        own = [run for run in runs if run["size"] == size]
        seconds = [run["seconds"] for run in own]
        fastest.append((size, min(seconds)))
        peak = max((run["peak"] for run in peaks if run["size"] == size), default=0)
        rows.append(
            (
                f"{size:,}",
                f"{min(seconds):.3f}",
                median(seconds),
                f"{max(seconds):.3f}",
                f"{statistics.median(run['hold'] for run in own) * 1e3:.1f}",
                f"{peak / 1024:,.0f}",
            )
        )
    line = Line.through(fastest) if len(fastest) > 2 else None
    points = [
        Point(
            run["size"],
            run["seconds"],
            OURS,
            f"{run['size']:,}: {run['seconds']:.3f} s",
        )
        for run in runs
    ]
    notes = []
    if line is not None:
        notes.append(
            f"{line.slope * 1e6:.1f} µs for each request on top of "
            f"{line.intercept * 1e3:.1f} ms, R² {line.r_squared:.4f}"
        )
    return Section(
        "Many requests",
        "ashutdown() of vLLM's engine on a stub core, in abort mode.",
        [
            scatter(
                "seconds by requests in flight",
                points,
                "requests",
                "seconds",
                logarithmic=True,
                line=line and (line.slope, line.intercept),
            )
        ],
        [
            Table(
                ("requests", "best, s", "median", "worst", "loop held, ms", "KiB"), rows
            )
        ],
        [
            Verdict(
                "10,000 in a second, and no hold above 20 ms",
                not broken,
                "; ".join(broken),
            )
        ],
        notes=notes,
    )


def serve(found: Found) -> Section:
    """Of `benchmarks/serve.py`."""
    rounds = flat(found)
    rows, lanes = [], []
    for name, label, scale_, digits in (
        ("throughput", "tokens a second", 1.0, 0),
        ("latency", "ms between tokens", 1e3, 3),
        ("processor", "ms of a processor for a token", 1e3, 3),
    ):
        loaded = [one["loaded"][name] for one in rounds]
        bare = [one["bare"][name] for one in rounds]
        ratios = [one / other for one, other in zip(loaded, bare, strict=True)]
        lanes.append(Row(f"{label}, with / without", {OURS: ratios}))
        rows.append(
            (
                label,
                f"{statistics.median(loaded) * scale_:,.{digits}f}",
                f"{statistics.median(bare) * scale_:,.{digits}f}",
                Median.of_ratios(ratios).text(3),
            )
        )
    return Section(
        "What it costs while nothing stops",
        f"Two servers at a time, loaded in turns; {len(rounds)} rounds.",
        [strip("ratio, with the plugin to without", lanes, "", 1.0)],
        [Table(("", "with", "without", "ratio [95 %]"), rows)],
    )


def race(found: Found) -> Section:
    """Of `benchmarks/race.py`."""
    orders = flat(found)
    kinds = list(dict.fromkeys(kind for one in orders for kind in one["faults"]))
    rows = [
        ("explored", *(f"{one['schedules']:,}" for one in orders)),
        ("of them distinct", *(f"{one['distinct']:,}" for one in orders)),
        ("faulty", *(f"{one['faulty']:,}" for one in orders)),
        *((kind, *(f"{one['faults'][kind]:,}" for one in orders)) for kind in kinds),
    ]
    bad = [one for one in orders if one["order"] == OURS and one["faulty"]]
    told = "; ".join(f"seed {one['first']}: {one['example']}" for one in bad)
    shares = Row(
        "faulty schedules of 100",
        {one["order"]: [100 * one["faulty"] / one["schedules"]] for one in orders},
    )
    return Section(
        "The race of a stop",
        "Random schedules of vLLM's real engine on a stub core.",
        [strip("faulty schedules of 100", [shares], "%")],
        [Table(("", *(one["order"] for one in orders)), rows)],
        [Verdict("no schedule of ours has a fault", not bad, told)],
        (STOCK, OURS),
    )
