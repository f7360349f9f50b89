"""A vLLM that is newer than every release that is supported, or older."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vllm_ashutdown.seams import support
from vllm_ashutdown.seams.registry import SEAMS
from vllm_ashutdown.seams.seam import Guard, How
from vllm_ashutdown.seams.support import warn_if_unsupported


@pytest.fixture
def loaded(monkeypatch) -> Any:
    """Has vLLM of that version loaded."""
    monkeypatch.setattr(support, "_said", set())

    def loaded(version: str, *parts: Any) -> None:
        module = ModuleType("vllm")
        module.__version__, module.__version_tuple__ = version, parts
        monkeypatch.setitem(sys.modules, "vllm", module)

    return loaded


@pytest.mark.parametrize(
    ("version", "parts"),
    [
        ("0.34.0", (0, 34, 0)),
        ("0.34.0rc1.dev3", (0, 34, 0, "rc1", "dev3")),
        ("1.0.0", (1, 0, 0)),
        ("0.27.1", (0, 27, 1)),
    ],
)
def test_another_release_gets_one_warning(version, parts, loaded, log):
    loaded(version, *parts)
    warn_if_unsupported()
    warn_if_unsupported()
    (record,) = log.records
    assert record.levelname == "WARNING"
    for said in (version, "vLLM 0.28 to 0.33", "vllm-ashutdown seams"):
        assert said in record.getMessage()


@pytest.mark.parametrize(
    ("version", "parts"),
    [
        ("0.28.0", (0, 28, 0)),
        ("0.33.9", (0, 33, 9)),
        ("0.33.1.dev2+g0", (0, 33, 1, "dev2", "g0")),
        ("dev", (0, 0, "dev")),
        ("dev", ("dev",)),
        ("", ()),
    ],
)
def test_a_supported_one_or_one_without_a_number_gets_none(version, parts, loaded, log):
    loaded(version, *parts)
    warn_if_unsupported()
    assert log.records == []


def test_where_no_vllm_is_loaded_there_is_nothing_to_say(monkeypatch, log):
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    warn_if_unsupported()
    assert log.records == []
    assert "vllm" not in sys.modules


def test_a_child_leaves_it_to_its_parent(loaded, log, monkeypatch):
    loaded("0.34.0", 0, 34, 0)
    monkeypatch.setattr(support, "_is_child", lambda: True)
    warn_if_unsupported()
    assert log.records == []


# -- a whole release, planted ----------------------------------------------------------

PROGRAM = """
import importlib, json, logging, sys

lines = []

class Keep(logging.Handler):
    def emit(self, record):
        if record.levelno >= logging.WARNING:
            lines.append(record.getMessage())

logging.getLogger("vllm.ashutdown").addHandler(Keep())
import vllm
import vllm_ashutdown
vllm_ashutdown.register()
stock = {}
for target in json.loads(sys.argv[1]):
    name, _, path = target.partition(":")
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError:
        continue
    for part in path.split("."):
        found = getattr(found, part)
    stock[target] = found(1)
from vllm_ashutdown.seams.installer import state_of
from vllm_ashutdown.seams.registry import SEAMS
states = {seam.name: state_of(seam)[0] for seam in SEAMS}
print(json.dumps({"lines": lines, "stock": stock, "states": states}))
"""

REPLACED = [seam for seam in SEAMS if seam.guard != Guard()]
GUARDED = [seam.targets[0] for seam in REPLACED]
PLANTED = {target.partition(":")[0] for target in GUARDED}


def plant(root: Path, version: str, targets: list[str]) -> None:
    """A vLLM that has something else in each of these places."""
    paths: dict[str, list[str]] = {"vllm": []}
    for target in targets:
        name, _, path = target.partition(":")
        paths.setdefault(name, []).append(path)
    for name, attributes in paths.items():
        package = root.joinpath(*name.split("."))
        package.mkdir(parents=True, exist_ok=True)
        lines = []
        for attribute in attributes:
            owner, _, own = attribute.rpartition(".")
            body = f"def {own}(other_than_ever):\n    return 'stock'\n"
            if owner:
                lines.append(f"if {owner!r} not in globals():\n    class {owner}: pass")
                body += f"{owner}.{own} = staticmethod({own})\ndel {own}\n"
            lines.append(body)
        (package / "__init__.py").write_text("\n".join(lines))
    for folder in (root / "vllm").rglob("*"):
        if folder.is_dir():
            (folder / "__init__.py").touch()
    parts = tuple(map(int, version.split(".")))
    with (root / "vllm" / "__init__.py").open("a") as init:
        init.write(f"__version__ = {version!r}\n__version_tuple__ = {parts}\n")


def run(root: Path) -> dict[str, Any]:
    environment = dict(os.environ)
    environment.pop("VLLM_ASHUTDOWN", None)
    source_root = Path(support.__file__).parents[2]
    environment["PYTHONPATH"] = os.pathsep.join([str(root), str(source_root)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(GUARDED)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_newer_vllm_keeps_its_own_behaviour_and_runs(tmp_path):
    plant(tmp_path, "0.34.0", GUARDED)
    found = run(tmp_path)
    assert found["stock"] == dict.fromkeys(GUARDED, "stock")
    said = {seam.name: 0 for seam in SEAMS}
    for line in found["lines"][1:]:
        said[line.split()[2]] += 1
    assert "this is vLLM 0.34.0" in found["lines"][0]
    for seam in SEAMS:
        if seam in REPLACED:
            assert found["states"][seam.name] == "skipped"
            assert said[seam.name] == 1
        elif seam.how is How.ADD and {*seam.modules} & PLANTED:
            assert found["states"][seam.name] == "skipped", "what it needs is"
    assert max(said.values()) == 1


def test_a_newer_vllm_that_has_moved_everything_is_told_of_too(tmp_path):
    plant(tmp_path, "0.34.0", [])
    found = run(tmp_path)
    assert set(found["states"].values()) == {"waiting"}
    (line,) = found["lines"]
    assert "this is vLLM 0.34.0" in line


def test_a_supported_vllm_is_not_told_of(tmp_path):
    plant(tmp_path, "0.33.1", [])
    assert run(tmp_path)["lines"] == []
