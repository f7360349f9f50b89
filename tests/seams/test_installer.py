"""Seams on made-up modules: what is laid, what is left alone, and when."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import sys
import types
from typing import Any

import pytest

from vllm_ashutdown.seams import imports, installer
from vllm_ashutdown.seams.imports import when_imported
from vllm_ashutdown.seams.installer import install, original_or, state_of
from vllm_ashutdown.seams.seam import Guard, How, Seam, State

MAKERS = "vllm_fake_makers"
HERE = "vllm.fake_here"
"""A module that is imported already, as far as Python can tell."""

SOURCE = """
def shutdown(self, timeout=None):
    return self.engine_core

class Engine:
    def shutdown(self, timeout=None):
        return self.engine_core

    @staticmethod
    def main(port):
        return port.bind

    def other(self):
        return "stock"
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """An installer that has laid nothing, and imports that nobody waits for."""
    for name in ("_states", "_reasons", "_originals"):
        monkeypatch.setattr(installer, name, {})
    finder = imports._Finder()
    monkeypatch.setattr(imports, "_finder", finder)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    yield finder
    for name in set(sys.modules) - before:
        if "fake" in name:
            del sys.modules[name]


@pytest.fixture
def made(monkeypatch):
    """What the makers were given, in the order."""
    calls: list[tuple[str, Any]] = []
    makers = types.ModuleType(MAKERS)

    def make(original: Any) -> Any:
        calls.append(("make", original))

        def ours(*args: Any, **kwargs: Any) -> Any:
            return "ours", original and original(*args, **kwargs)

        return ours

    def breaks(original: Any) -> Any:
        calls.append(("breaks", original))
        raise AttributeError("another release has no such thing")

    makers.make, makers.breaks = make, breaks
    monkeypatch.setitem(sys.modules, MAKERS, makers)
    return calls


def fake_module(monkeypatch: pytest.MonkeyPatch, name: str = HERE) -> Any:
    module = types.ModuleType(name)
    exec(SOURCE, vars(module))
    monkeypatch.setitem(sys.modules, name, module)
    return module


@pytest.fixture
def here(monkeypatch):
    return fake_module(monkeypatch)


@pytest.fixture
def late(tmp_path, monkeypatch):
    """Writes a module that can be imported; gives its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str = "vllm_fake_late", source: str = SOURCE) -> str:
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        return name

    return write


def a_seam(*targets: str, how: How = How.WRAP, name: str = "s", **more: Any) -> Seam:
    targets = targets or (f"{HERE}:Engine.shutdown",)
    more.setdefault("make", f"{MAKERS}:make")
    return Seam(name, targets, how, why="w", reference="r", until="u", **more)


def warnings(log: Any) -> list[str]:
    return [one.getMessage() for one in log.records if one.levelno >= logging.WARNING]


# -- laying ------------------------------------------------------------------------


@pytest.mark.parametrize("how", [How.WRAP, How.REPLACE])
def test_a_seam_whose_guard_matches_is_laid(how, here, made, log):
    stock = here.Engine.shutdown
    guard = Guard(("self", "timeout"), ("engine_core",))
    seam = a_seam(how=how, guard=guard)
    assert state_of(seam) == (State.WAITING, "")
    install([seam])
    assert state_of(seam) == (State.LAID, "")
    assert made == [("make", stock)]
    engine = here.Engine()
    engine.engine_core = "core"
    assert engine.shutdown() == ("ours", "core")
    assert engine.other() == "stock", "nothing else is touched"
    assert log.records == []


def test_what_was_there_is_remembered_by_the_seams_name(here, made):
    stock = here.Engine.shutdown
    assert original_or("s", "fallback") == "fallback"
    install([a_seam()])
    assert original_or("s", "fallback") is stock
    assert original_or("another", "fallback") == "fallback"


def test_to_install_twice_is_to_install_once(here, made, log):
    seam = a_seam()
    install([seam])
    ours = here.Engine.shutdown
    install([seam])
    install([seam])
    assert here.Engine.shutdown is ours
    assert len(made) == 1


def test_a_static_method_stays_one(here, made):
    install([a_seam(f"{HERE}:Engine.main", guard=Guard(("port",), ("bind",)))])
    assert isinstance(vars(here.Engine)["main"], staticmethod)
    port = types.SimpleNamespace(bind="bound")
    assert here.Engine().main(port) == here.Engine.main(port) == ("ours", "bound")


def test_a_new_attribute_is_added(here, made):
    seam = a_seam(f"{HERE}:Engine.ashutdown", how=How.ADD)
    install([seam])
    assert state_of(seam)[0] is State.LAID
    assert made == [("make", None)]
    assert here.Engine().ashutdown() == ("ours", None)


def test_it_follows_into_the_modules_that_have_imported_it_by_name(
    here, made, monkeypatch
):
    stock = here.shutdown
    user = types.ModuleType("vllm.fake_user")
    user.shutdown = stock
    namesake = types.ModuleType("vllm.fake_namesake")
    namesake.shutdown = its_own = lambda: None
    foreign = types.ModuleType("fake_foreign")
    foreign.shutdown = stock
    for module in (user, namesake, foreign):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    install([a_seam(f"{HERE}:shutdown")])
    assert here.shutdown is not stock
    assert user.shutdown is here.shutdown
    assert namesake.shutdown is its_own
    assert foreign.shutdown is stock, "only vLLM's own modules are touched"


def test_a_method_is_not_followed_as_if_it_were_a_function(here, made, monkeypatch):
    user = types.ModuleType("vllm.fake_user")
    user.shutdown = stock = here.Engine.shutdown
    monkeypatch.setitem(sys.modules, user.__name__, user)
    install([a_seam()])
    assert user.shutdown is stock


# -- skipping ----------------------------------------------------------------------


SKIPPED = {
    "parameters": (
        a_seam(guard=Guard(("self", "seconds"))),
        "has changed: it takes (self, timeout), without 'seconds'",
    ),
    "body": (
        a_seam(guard=Guard(reads=("renderer",))),
        "has changed: it no longer uses renderer",
    ),
    "attribute": (a_seam(f"{HERE}:Engine.stop"), "Engine.stop is gone"),
    "class": (a_seam(f"{HERE}:Motor.shutdown"), "Motor.shutdown is gone"),
    "function": (a_seam(f"{HERE}:stop"), "stop is gone"),
    "own": (
        a_seam(f"{HERE}:Engine.other", how=How.ADD),
        "this vLLM has its own Engine.other",
    ),
}


@pytest.mark.parametrize(("seam", "reason"), SKIPPED.values(), ids=SKIPPED)
def test_a_seam_that_does_not_fit_is_skipped_with_one_warning(
    seam, reason, here, made, log
):
    before = dict(vars(here)), dict(vars(here.Engine))
    install([seam])
    install([seam])
    assert (dict(vars(here)), dict(vars(here.Engine))) == before
    assert made == []
    state, said = state_of(seam)
    assert state is State.SKIPPED
    assert said.endswith(reason)
    (warning,) = warnings(log)
    assert "seam s skipped" in warning
    assert said in warning
    assert original_or("s", "fallback") == "fallback"


def test_what_needs_a_skipped_seam_is_skipped_and_says_so(here, made, log):
    base = a_seam(f"{HERE}:Engine.stop", name="base")
    middle = a_seam(name="middle", needs=("base",))
    top = a_seam(f"{HERE}:Engine.other", name="top", needs=("middle",))
    free = a_seam(f"{HERE}:Engine.main", name="free")
    stock = here.Engine.shutdown, here.Engine.other
    install([base, middle, top, free])
    assert [state_of(seam)[0] for seam in (base, middle, top, free)] == [
        State.SKIPPED,
        State.SKIPPED,
        State.SKIPPED,
        State.LAID,
    ]
    assert (here.Engine.shutdown, here.Engine.other) == stock
    assert state_of(middle)[1] == "it needs base, which is skipped"
    assert state_of(top)[1] == "it needs middle, which is skipped"
    assert len(warnings(log)) == 3


def test_what_needs_a_laid_seam_is_laid(here, made, log):
    base = a_seam(name="base")
    top = a_seam(f"{HERE}:Engine.other", name="top", needs=("base",))
    install([base, top])
    assert state_of(top) == (State.LAID, "")
    assert warnings(log) == []


def test_what_needs_a_seam_is_not_laid_before_it_is_known_to_fit(here, made, late, log):
    # As where the launcher is imported before the engine.
    name = late()
    base = a_seam(f"{name}:Engine.gone", name="base")
    top = a_seam(name="top", needs=("base",))
    stock = here.Engine.shutdown
    install([base, top])
    importlib.import_module(name)
    assert state_of(base)[0] is State.SKIPPED
    assert state_of(top)[0] is not State.LAID
    assert here.Engine.shutdown is stock


@pytest.mark.parametrize("make", [f"{MAKERS}:breaks", "vllm_fake_nowhere:make"])
def test_a_maker_that_breaks_costs_its_seam_and_not_the_process(make, here, made, log):
    stock = here.Engine.shutdown
    broken = a_seam(make=make)
    other = a_seam(f"{HERE}:Engine.other", name="other")
    install([broken, other])
    assert here.Engine.shutdown is stock
    assert state_of(broken)[0] is State.SKIPPED
    assert state_of(other)[0] is State.LAID
    assert len(warnings(log)) == 1


def test_a_maker_that_breaks_does_not_break_vllms_import(late, made, log):
    name = late()
    install([a_seam(f"{name}:Engine.shutdown", make=f"{MAKERS}:breaks")])
    module = importlib.import_module(name)
    assert module.Engine().other() == "stock"


# -- waiting for the import --------------------------------------------------------


def test_a_seam_waits_for_its_module_and_never_imports_it(late, made):
    name = late()
    seam = a_seam(f"{name}:Engine.shutdown")
    install([seam])
    assert state_of(seam)[0] is State.WAITING
    assert name not in sys.modules
    assert made == []
    module = importlib.import_module(name)
    assert state_of(seam)[0] is State.LAID
    module.Engine.engine_core = "core"
    assert module.Engine().shutdown() == ("ours", "core")


def test_whoever_imports_it_by_name_gets_ours(late, made):
    name = late()
    install([a_seam(f"{name}:shutdown")])
    user: dict[str, Any] = {}
    exec(f"from {name} import shutdown", user)
    assert user["shutdown"](types.SimpleNamespace(engine_core=1)) == ("ours", 1)


@pytest.mark.parametrize("there", ["vllm_fake_new", "vllm_fake_old"])
def test_it_is_laid_on_the_one_target_whose_module_there_is(there, late, made, log):
    late(there)
    seam = a_seam("vllm_fake_new:shutdown", "vllm_fake_old:shutdown")
    install([seam])
    for name in ("vllm_fake_new", "vllm_fake_old"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert name != there
    assert state_of(seam)[0] is State.LAID
    assert len(made) == 1
    assert warnings(log) == []


def test_with_both_modules_there_it_is_laid_once(late, made):
    seam = a_seam("vllm_fake_new:shutdown", "vllm_fake_old:shutdown")
    install([seam])
    for name in ("vllm_fake_new", "vllm_fake_old"):
        importlib.import_module(late(name))
    assert len(made) == 1


def test_the_module_and_its_tools_do_not_see_us(late, made):
    name = late()
    install([a_seam(f"{name}:shutdown")])
    module = importlib.import_module(name)
    plain = importlib.import_module(late("vllm_fake_plain"))
    assert type(module.__spec__.loader) is type(plain.__spec__.loader)
    assert module.__loader__ is module.__spec__.loader
    assert "def shutdown" in inspect.getsource(module.Engine)
    assert module.__spec__.origin == module.__file__


def test_several_wait_for_one_module_and_are_called_in_their_order(late):
    name, calls = late(), []
    assert not when_imported(name, lambda module: calls.append((1, module)))
    assert not when_imported(name, lambda module: calls.append((2, module)))
    module = importlib.import_module(name)
    assert calls == [(1, module), (2, module)]
    assert when_imported(name, lambda module: calls.append((3, module)))
    assert calls[2:] == [(3, module)]


def test_whoever_waits_is_called_with_the_whole_module_and_once(late):
    name, seen = late(source="early = 1\nlast = 2\n"), []
    when_imported(name, lambda module: seen.append(module.last))
    module = importlib.import_module(name)
    importlib.reload(module)
    del sys.modules[name]
    importlib.import_module(name)
    assert seen == [2]


def test_an_import_that_fails_fails_as_ever_and_can_be_tried_again(late):
    name, seen = late(source="raise LookupError('its own')\n"), []
    when_imported(name, seen.append)
    with pytest.raises(LookupError, match="its own"):
        importlib.import_module(name)
    assert name not in sys.modules
    assert seen == []
    late(source="fixed = True  # and of another size\n")
    module = importlib.import_module(name)
    assert seen == [module]


def test_a_module_that_is_not_there_is_not_there(fresh):
    when_imported("vllm_fake_nowhere", pytest.fail)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("vllm_fake_nowhere")
    assert importlib.util.find_spec("vllm_fake_nowhere") is None


def test_to_look_for_a_module_does_not_import_it(late):
    name = late()
    when_imported(name, pytest.fail)
    assert importlib.util.find_spec(name) is not None
    assert name not in sys.modules


def test_modules_that_nobody_waits_for_are_none_of_our_business(late, fresh):
    when_imported("vllm_fake_other", pytest.fail)
    assert sys.meta_path[0] is fresh
    assert fresh.find_spec("json") is None
    module = importlib.import_module(late())
    assert module.Engine().other() == "stock"


def test_a_waited_for_module_that_imports_another_one_is_fine(late):
    seen = []
    inner = late("vllm_fake_inner")
    outer = late("vllm_fake_outer", f"import {inner}\n")
    for name in (outer, inner):
        when_imported(name, lambda module: seen.append(module.__name__))
    importlib.import_module(outer)
    assert seen == [inner, outer]


def test_a_waited_for_package_and_its_submodule(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "vllm_fake_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("there = True\n")
    importlib.invalidate_caches()
    seen = []
    for name in ("vllm_fake_package", "vllm_fake_package.part"):
        when_imported(name, lambda module: seen.append(module.__name__))
    importlib.import_module("vllm_fake_package.part")
    assert seen == ["vllm_fake_package", "vllm_fake_package.part"]
