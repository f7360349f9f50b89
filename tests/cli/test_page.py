"""The page: by its text, and in a real browser where there is one."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import pytest

from tests.browser import Browser, browser, executable
from tests.reports import SECONDS, a_report
from vllm_ashutdown.cli.page import page
from vllm_ashutdown.core.phase import Outcome, Phase, PhaseRecord
from vllm_ashutdown.core.report import ProcessEnd, ShutdownReport
from vllm_ashutdown.core.trigger import Trigger
from vllm_ashutdown.inventory import Row

EVIL = "<script>alert(1)</script>\"'><img src=//x.test/y onerror=alert(1)>{{ 7*7 }}"
LONG = "w" * 300


def everything(words: str = "plain") -> ShutdownReport:
    """A report with ``words`` wherever a report may have other people's words."""
    changed = {
        phase: PhaseRecord(phase, 60.0, seconds, outcome, words, 0.1)
        for (phase, seconds), outcome in zip(
            SECONDS.items(), [*Outcome, *Outcome], strict=False
        )
    }
    return a_report(
        changed=changed,
        trigger=Trigger.death(words),
        leftovers=(f"file {words} is there",),
        processes=(
            ProcessEnd(words, 1, 0, ended=7.0),
            ProcessEnd(words, 2, None),
            ProcessEnd(words, 3, -9, killed=True, ended=9.0),
        ),
        inventory=(
            Row(
                "temporary files",
                (words, "gone"),
                (words,),
                (f"file {words} is there",),
            ),
            Row("descriptors", ("0",), ("0", words)),
            Row("semaphores"),
        ),
    )


# -- its text ----------------------------------------------------------------------


def test_the_verdict_comes_first():
    assert "<h1>Clean stop</h1>" in page(a_report())
    text = page(a_report(leftovers=("process X is alive",)))
    assert "<h1>Not a clean stop</h1>" in text
    assert "Clean stop" not in text
    assert text.index("1 left behind") < text.index("Timeline")
    assert "process X is alive" in text


def test_what_is_not_clean_for_another_reason_says_which():
    text = page(a_report(processes=(ProcessEnd("EngineCore", 7, -15),)))
    why = text[text.index("Why it is not clean") : text.index("Timeline")]
    assert "EngineCore (pid 7): ended by signal 15" in why
    assert "left behind</a>" not in why


def test_it_has_every_phase_process_row_and_leftover():
    text = html.unescape(page(everything()))
    for phase in Phase:
        assert f'data-phase="{phase}"' in text
    for words in (
        "killed: outlasted its share of the budget",
        "still alive",
        "file plain is there",
        "2 held",
        "8 completed",
        "2 ended",
        "1 refused",
        "time was up",
        "cut short",
        "semaphores",
    ):
        assert words in text, words


def test_a_drain_without_limit_has_no_meter():
    record = PhaseRecord(Phase.DRAIN, float("inf"), 6.0, Outcome.DONE)
    text = page(a_report(changed={Phase.DRAIN: record}))
    row = text[text.rindex('<th scope="row">drain') :]
    row = row[: row.index("</tr>")]
    assert "no limit" in row
    assert "meter" not in row


def test_every_value_is_escaped():
    text = page(everything(EVIL))
    assert "<script" not in text
    assert "<img" not in text
    assert "{{ 7*7 }}" in text, "and none is taken for a template"
    # Each tag that is there is one of ours.
    tags = set(re.findall(r"<([a-z0-9]+)", text))
    assert tags == set(re.findall(r"<([a-z0-9]+)", page(everything())))


def test_it_names_nothing_on_the_network():
    text = page(everything())
    assert not re.findall(r"(?:https?:|src=|url\(|@import)", text)


def test_whatever_a_file_is_called_it_can_be_written():
    text = page(everything("/tmp/\udcff\x1b"))
    assert "/tmp/\\udcff\\x1b" in text
    text.encode()


# -- in a browser ------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader() -> Iterator[Browser]:
    program = executable()
    if program is None:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    with browser(program) as one:
        yield one


REPORTS = {
    "clean": a_report(),
    "everything": everything(),
    "evil": everything(EVIL),
    "long": everything(LONG),
    "empty": ShutdownReport.from_json(
        '{"trigger": {"kind": "call", "detail": "x"}, "mode": "kill", "seconds": 0,'
        '"final_mode": "kill", "phases": [], "requests": {}, "processes": [],'
        '"leftovers": [], "inventory": []}'
    ),
}


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("clean", 1440),
        ("empty", 360),
        ("evil", 360),
        ("everything", 360),
        ("long", 360),
        ("long", 1440),
    ],
)
def test_a_browser_has_nothing_to_say_against_it(reader, tmp_path, name, width):
    path = tmp_path / "report.html"
    path.write_text(page(REPORTS[name]), encoding="utf-8")
    seen = reader.open(path, width)
    assert seen.complaints == []
    assert seen.requests == [path.as_uri()]
    assert seen.width <= width, "it can be read without being pushed about"
    reader.ask("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert reader.ask("document.documentElement.scrollWidth") <= width
    rows = reader.ask(
        "[...document.querySelector('.chart').querySelectorAll('[data-phase]')]"
        ".filter(one => one.offsetHeight > 0).map(one => one.dataset.phase)"
    )
    assert rows == [record.phase for record in REPORTS[name].phases]


@pytest.mark.parametrize("width", [360, 1440])
def test_bars_stay_on_their_axis(reader, tmp_path, width):
    path = tmp_path / "report.html"
    path.write_text(page(everything()), encoding="utf-8")
    reader.open(path, width)
    sizes = reader.ask(
        "[...document.querySelectorAll('.track i')].map(one => {"
        " const bar = one.getBoundingClientRect(),"
        " track = one.parentElement.getBoundingClientRect();"
        " return [bar.width, bar.left - track.left, bar.right - track.right] })"
    )
    assert len(sizes) > 10
    for wide, left, right in sizes:
        assert wide >= 3, "however short it was, there is a mark"
        assert left >= 0
        assert right <= 0.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_told_from_their_ground(reader, tmp_path, scheme):
    path = tmp_path / "report.html"
    path.write_text(page(everything()), encoding="utf-8")
    reader.open(path, 1440, scheme=scheme)
    ground, ink = (luminance(reader, what) for what in ("backgroundColor", "color"))
    assert (ground > ink) is (scheme == "light")
    low = reader.ask(CONTRASTS)
    assert low == [], "each has the contrast that WCAG asks for small text"


def luminance(reader: Browser, what: str) -> float:
    text = reader.ask(f"getComputedStyle(document.body).{what}")
    return sum(map(float, re.findall(r"\d+", text)[:3]))


CONTRASTS = """
(() => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const ground = one => {
    for (; one; one = one.parentElement) {
      const found = rgb(getComputedStyle(one).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const one of document.querySelectorAll('main *')) {
    const own = [...one.childNodes]
      .some(node => node.nodeType === 3 && node.data.trim());
    if (!own || one.closest('[aria-hidden]')) continue;
    const pair = [light(rgb(getComputedStyle(one).color)), light(ground(one))];
    const ratio = (Math.max(...pair) + .05) / (Math.min(...pair) + .05);
    if (ratio < 4.5) low.push([one.className || one.tagName, one.textContent, ratio]);
  }
  return low;
})()
"""
