"""What sources have in the place of a seam: made-up ones, and the installed ones."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from vllm_ashutdown.seams.installer import original_or
from vllm_ashutdown.seams.registry import SEAMS
from vllm_ashutdown.seams.seam import Guard, How, Seam
from vllm_ashutdown.seams.sources import Finding, Fit, Sources

ENGINE = """
import signal
from abc import ABC
from contextlib import contextmanager
from elsewhere import tool, outside
from .base import Base, handed
from . import base as renamed

class Engine(Base, ABC):
    def shutdown(self, timeout=None, *args, renderer=None, **more):
        def inner():
            return self.engine_core
        return getattr(self, "output_handler", inner)

    @staticmethod
    def main(port):
        return port.bind

    @classmethod
    def make(cls, port):
        return cls(port.bind)

    @contextmanager
    def held(self):
        yield self.bind

    @tool.measured(7)
    def slow(self):
        return self.bind

    if signal:
        def guarded(self):
            return self.bind
    else:
        guarded = None

    table: dict
    state: int = 0

try:
    import quick
except ImportError:
    def late(port):
        return port.bind
"""
BASE = """
class Base:
    def inherited(self, port):
        return port.bind

def handed(port):
    return port.bind
"""


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    write(tmp_path, "vllm.engine", ENGINE)
    write(tmp_path, "vllm.base", BASE)
    return Sources(tmp_path)


def write(root: Path, name: str, text: str) -> None:
    path = root.joinpath(*name.split(".")).with_suffix(".py")
    for folder in list(path.parents)[: name.count(".")]:
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
    path.write_text(text)


def a_seam(*targets: str, how: How = How.WRAP, guard: Guard | None = None) -> Seam:
    guard = Guard() if guard is None else guard
    return Seam("s", targets, how, "m:f", "w", "r", "u", guard)


BIND = Guard(reads=("bind",))


@pytest.mark.parametrize(
    ("path", "guard"),
    [
        ("Engine.shutdown", Guard(("self", "timeout", "args", "renderer", "more"))),
        ("Engine.shutdown", Guard(reads=("engine_core", "output_handler", "inner"))),
        ("Engine.main", Guard(("port",), ("bind",))),
        ("Engine.make", Guard(("port",), ("bind",))),
        ("Engine.held", Guard(("self",), ("bind",))),
        ("Engine.guarded", Guard()),
        ("Engine.state", Guard()),
        ("Engine.inherited", Guard(("self", "port"), ("bind",))),
        ("handed", Guard(("port",), ("bind",))),
        ("renamed.handed", Guard(("port",), ("bind",))),
        ("late", Guard(("port",), ("bind",))),
        ("signal", Guard()),
        ("outside", Guard()),
    ],
)
def test_what_fits(sources, path, guard):
    seam = a_seam(f"vllm.engine:{path}", guard=guard)
    assert sources.look(seam) == Finding(Fit.FITS)


@pytest.mark.parametrize(
    ("path", "guard", "reason"),
    [
        ("Engine.shutdown", Guard(("seconds",)), "without 'seconds'"),
        ("Engine.shutdown", Guard(("renderer", "timeout")), "without 'timeout'"),
        ("Engine.shutdown", Guard(reads=("core",)), "it no longer uses core"),
        ("Engine.make", Guard(("cls", "port")), "it takes (port), without 'cls'"),
        ("Engine.inherited", Guard(("seconds",)), "without 'seconds'"),
        ("handed", Guard(reads=("core",)), "it no longer uses core"),
        ("Engine.stop", BIND, "vllm.engine:Engine.stop is gone"),
        ("Engine.table", Guard(), "is gone"),  # declared, and never made
        ("Motor.stop", BIND, "is gone"),
        ("handed.stop", BIND, "is gone"),
        ("stop", BIND, "is gone"),
    ],
)
def test_what_does_not(sources, path, guard, reason):
    found = sources.look(a_seam(f"vllm.engine:{path}", guard=guard))
    assert found.fit is Fit.MISFIT
    assert found.reason.endswith(reason)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("Engine.slow", "is decorated: measured"),
        ("Engine.state", "is not made by a plain `def`"),
        ("Engine", "is not made by a plain `def`"),
        ("outside", "comes from outside of vLLM"),
        ("signal", "comes from outside of vLLM"),
    ],
)
def test_what_only_the_running_process_can_tell_is_not_taken_for_a_fit(
    sources, path, reason
):
    found = sources.look(a_seam(f"vllm.engine:{path}", guard=BIND))
    assert found.fit is Fit.UNKNOWN
    assert found.reason.endswith(reason)


def test_what_is_added_must_not_be_there(sources):
    def look(path: str) -> Fit:
        return sources.look(a_seam(f"vllm.engine:{path}", how=How.ADD)).fit

    assert look("Engine.ashutdown") is Fit.FITS
    assert look("Engine.inherited") is Fit.MISFIT
    assert look("Engine.shutdown") is Fit.MISFIT


def test_a_release_without_the_module_has_no_such_thing(sources):
    found = sources.look(a_seam("vllm.new:f", "vllm.old:f"))
    assert found == Finding(Fit.ABSENT, "no module vllm.new or vllm.old")


def test_each_place_that_there_is_must_do(sources, tmp_path):
    seam = a_seam("vllm.base:handed", "vllm.old:handed", guard=BIND)
    assert sources.look(seam).fit is Fit.FITS
    # The seam would be skipped wherever this one is imported first.
    write(tmp_path, "vllm.old", "def handed(port):\n    return port.close\n")
    found = Sources(tmp_path).look(seam)
    assert found.reason.endswith("it no longer uses bind")


def test_an_old_place_that_hands_on_is_imported_behind_the_new_one(sources, tmp_path):
    write(tmp_path, "vllm.old", "from vllm.base import Base\n")
    seam = a_seam("vllm.base:handed", "vllm.old:handed", guard=BIND)
    assert Sources(tmp_path).look(seam).fit is Fit.FITS


def test_whether_a_module_has_a_name(sources):
    assert sources.has("vllm.engine", "Engine")
    assert sources.has("vllm.engine", "signal")
    assert sources.has("vllm", "engine")
    assert not sources.has("vllm.engine", "Motor")
    assert not sources.has("vllm.nowhere", "Engine")


# -- against the live guard, on the vLLM that is installed --------------------------


@pytest.fixture(scope="module")
def installed() -> Sources:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Sources(Path(spec.origin).parent.parent)


GUARDED = [seam for seam in SEAMS if seam.guard != Guard()]


@pytest.mark.parametrize("seam", SEAMS, ids=[seam.name for seam in SEAMS])
def test_every_seam_fits_the_sources_that_are_installed(seam, installed):
    assert installed.look(seam) == Finding(Fit.FITS)


@pytest.mark.parametrize("seam", GUARDED, ids=[seam.name for seam in GUARDED])
def test_the_sources_tell_what_the_live_guard_tells(seam, installed):
    live = live_attribute(seam)
    for guard in (
        seam.guard,
        structs.replace(seam.guard, parameters=("of_tomorrow",)),
        structs.replace(
            seam.guard, parameters=(), reads=("of_tomorrow", *seam.guard.reads)
        ),
    ):
        found = installed.look(structs.replace(seam, guard=guard))
        said = guard.mismatch(live)
        assert (found.fit is Fit.FITS) == (said is None)
        assert found.reason.endswith(said or "")


def live_attribute(seam: Seam) -> Any:
    """vLLM's own, from behind the seam that is laid over it."""
    for target in seam.targets:
        name, _, path = target.partition(":")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                found: Any = importlib.import_module(name)
        except ImportError:
            continue
        for part in path.split("."):
            found = getattr(found, part)
        return original_or(seam.name, found)
    pytest.fail(f"{seam.name} is nowhere")
