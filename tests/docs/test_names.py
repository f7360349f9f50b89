"""What the pages name is in the code, and what is in the code is named on them.

Commands and options, variables, exit codes, metrics, targets of make, links.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.pages import PAGES, ROOT, code, name
from vllm_ashutdown import settings
from vllm_ashutdown.cli.main import EXIT_USAGE, build_parser
from vllm_ashutdown.core.reading import PHASES
from vllm_ashutdown.exit_code import ExitCode
from vllm_ashutdown.telling.metrics import KINDS, ShutdownMetrics

README = ROOT / "README.md"
PROMISES = ROOT / "docs" / "what-a-stop-promises.md"
ALERTS = ROOT / "docs" / "recipes" / "alerts.yaml"

each_page = pytest.mark.parametrize("page", PAGES, ids=name)

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")

FOREIGN = {"--init", "--gpus", "--stop-timeout", "--shm-size"}
"""Docker's own."""

CODES = {int(one) for one in ExitCode} | {1, EXIT_USAGE, 137}
"""1 is a failed start's and the commands' own, 137 a shell's for what was killed."""


# -- commands ------------------------------------------------------------------------


def own_options() -> dict[str, set[str]]:
    """Of each command of ours, its options."""
    (commands,) = [
        action.choices
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    return {
        command: set(parser._option_string_actions)
        for command, parser in commands.items()
    }


@pytest.fixture(scope="module")
def vllms_words() -> str:
    """Where vLLM keeps the options of its server, unread: an import takes seconds."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    files = [folder / "engine" / "arg_utils.py"]
    files += (folder / "entrypoints").rglob("cli_args.py")
    return "\n".join(path.read_text() for path in files)


def is_vllms(option: str, words: str) -> bool:
    field = option.removeprefix("--").replace("-", "_")
    return re.search(rf"\b{field}\b|{re.escape(option)}\b", words) is not None


COMMAND = re.compile(r"vllm-ashutdown(?: ([a-z]+))?(.*?)(?= -- | [|&;]|$)")


@each_page
def test_every_command_and_option_is_there(page: Path, vllms_words: str):
    own = own_options()
    for line in code(page):
        if not re.search(r"(?<![\w/.-])vllm-ashutdown( |$)", line):
            continue
        for command, rest in COMMAND.findall(line):
            assert command == "" or command in own, f"{line}: no such command"
            for option in OPTION.findall(rest):
                known = option in own.get(command, ())
                if command == "serve":
                    known = is_vllms(option, vllms_words)
                assert known, f"{line}: {command} has no {option}"


@each_page
def test_no_other_option_is_made_up(page: Path, vllms_words: str):
    own = FOREIGN.union(*own_options().values())
    scripts = [*(ROOT / "benchmarks").glob("*.py"), ROOT / "docs" / "reference.py"]
    for line in code(page):
        theirs = "".join(path.read_text() for path in scripts if path.name in line)
        for option in OPTION.findall(line):
            known = option in own or f'"{option}"' in theirs
            assert known or is_vllms(option, vllms_words), f"{line}: {option}"


@each_page
def test_every_benchmark_and_its_options_are_there(page: Path):
    for line in code(page):
        for script, rest in re.findall(r"(\bbenchmarks/\w+\.py)([^|&;]*)", line):
            text = (ROOT / script).read_text()
            imported = "".join(
                (ROOT / "benchmarks" / f"{one}.py").read_text()
                for one in ("output", "shard")
                if f"benchmarks.{one} import" in text
            )
            for option in OPTION.findall(rest):
                assert f'"{option}"' in text + imported, f"{script} has no {option}"


@each_page
def test_every_target_of_make_is_there_and_finds_its_tests(page: Path):
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    for line in code(page):
        for target, rest in re.findall(r"^make ([a-z]+)(.*)", line):
            assert target in targets, line
            marker = "matrix" if target == "matrix" else ""
            for word in words_of(rest):
                assert is_a_test(word, marker), f"{line}: {word} chooses no test"


def words_of(arguments: str) -> Iterator[str]:
    """Those of pytest's ``-k``."""
    for quoted, plain in re.findall(r"-k (?:\"([^\"]+)\"|(\w+))", arguments):
        for word in re.findall(r"\w+", quoted or plain):
            if word not in ("and", "or", "not"):
                yield word


def is_a_test(word: str, marker: str) -> bool:
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        inside = word in path.name or re.search(rf"def test_\w*{word}", text)
        if inside and (not marker or f"mark.{marker}" in text):
            return True
    return False


# -- variables -----------------------------------------------------------------------


@each_page
def test_every_variable_is_there(page: Path):
    known = {one.name for one in settings.VARIABLES}
    setup = (ROOT / ".ci" / "setup").read_text()
    known |= set(re.findall(r"\{(VLLM_ASHUTDOWN_[A-Z_]+):-", setup))
    assert set(re.findall(r"VLLM_ASHUTDOWN(?:_[A-Z]+)*", page.read_text())) <= known


def test_every_variable_is_in_the_readme():
    for one in settings.VARIABLES:
        assert f"\n| `{one.name}` |" in README.read_text()


# -- exit codes ----------------------------------------------------------------------


@each_page
def test_every_exit_code_is_there(page: Path):
    said = re.findall(r"(?i)exit(?:s with| codes? is| codes?) (\d+)", page.read_text())
    assert {int(one) for one in said} <= CODES


def test_every_exit_code_is_in_the_readme_and_no_other():
    rows = re.findall(r"^\| (\d+) \|", README.read_text(), re.MULTILINE)
    assert {int(one) for one in rows} == {int(one) for one in ExitCode} | {1}


# -- metrics -------------------------------------------------------------------------

PREFIX = "vllm:shutdown_"


def metric_names() -> set[str]:
    """As they stand at /metrics."""
    families = [one.collect()[0] for one in vars(ShutdownMetrics()).values()]
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for family in families
    }


def named(text: str) -> set[str]:
    """Those that a text names."""
    return {PREFIX + one for one in re.findall(rf"{PREFIX}(\w+)", text)}


@pytest.mark.parametrize("page", [*PAGES, ALERTS], ids=name)
def test_every_metric_and_label_is_there(page: Path):
    text = page.read_text()
    assert named(text) <= metric_names()
    for label, value in re.findall(r"\b(phase|kind)!?=~?\"([^\"]+)\"", text):
        known = PHASES if label == "phase" else KINDS
        assert set(value.split("|")) <= set(known), f'{label}="{value}"'


def test_every_metric_is_on_the_page_about_them_and_in_the_readme():
    page = ROOT / "docs" / "how-to" / "prometheus.md"
    assert named(page.read_text()) == metric_names()
    # The README says the first in full, and of the others what is different.
    (short,) = re.findall(r"(?s)`vllm:shutdown_phase`.*?leftovers`", README.read_text())
    ends = ["phase", *re.findall(r"`_(\w+)", short)]
    assert {PREFIX + one for one in ends} == metric_names()


def test_the_alerts_are_rules_of_prometheus():
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"])
    for rule in group["rules"]:
        assert named(rule["expr"])
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert {"summary", "description"} == rule["annotations"].keys()


# -- figures and links ---------------------------------------------------------------

FIGURE = re.compile(r"\d[\d.,]*(?: to [\d.]+)? (?:m?s|explored|faulty|starts)\b")


def test_every_figure_on_the_page_of_promises_is_the_readmes():
    (*_, tables) = PROMISES.read_text().partition("## To a client")
    rows = [line.split("|")[3] for line in tables.splitlines() if line.startswith("| ")]
    found = [figure for row in rows for figure in FIGURE.findall(row)]
    assert len(found) > 10
    for figure in found:
        assert re.search(rf"(?<![\d.]){re.escape(figure)}", README.read_text()), figure


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in titles}


@each_page
def test_every_link_leads_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


def test_the_index_has_every_page():
    index = ROOT / "docs" / "README.md"
    linked = {
        (index.parent / target.partition("#")[0]).resolve()
        for target in re.findall(r"\]\(([^)\s]+)\)", index.read_text())
    }
    assert {page for page in PAGES if page != index} <= linked
