"""The records against the code and against the vLLM that is installed."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import warnings

import pytest

from vllm_ashutdown import adapters
from vllm_ashutdown.seams.installer import state_of
from vllm_ashutdown.seams.registry import SEAMS
from vllm_ashutdown.seams.seam import Guard, How, Seam, State

NAMES = [seam.name for seam in SEAMS]
each_seam = pytest.mark.parametrize("seam", SEAMS, ids=NAMES)


def import_target(seam: Seam) -> None:
    for name in seam.modules:
        try:
            with warnings.catch_warnings():
                # An older place of it, that vLLM keeps with a warning.
                warnings.simplefilter("ignore", DeprecationWarning)
                importlib.import_module(name)
        except ModuleNotFoundError as error:
            # Another release's place of it, or of a package above it.
            if not name.startswith(error.name or "?"):
                raise
        except ImportError as error:
            pytest.skip(f"an extra of vLLM's is not installed: {error}")


def test_names_are_unique():
    assert len(set(NAMES)) == len(NAMES)


def test_targets_are_unique():
    targets = [target for seam in SEAMS for target in seam.targets]
    assert len(set(targets)) == len(targets)


@each_seam
def test_a_record_is_filled_in(seam):
    for words in (seam.why, seam.until):
        assert len(words.split()) >= 4
    assert seam.why.endswith(".")
    assert not seam.until.endswith(".")
    assert re.search(r"#\d+$", seam.reference)
    assert seam.targets
    for target in seam.targets:
        assert re.fullmatch(r"vllm(\.\w+)+:\w+(\.\w+)?", target)
        assert target.endswith(seam.name), "the name says what is touched"


@each_seam
def test_what_a_record_needs_stands_before_it(seam):
    before = NAMES[: NAMES.index(seam.name)]
    assert len(set(seam.needs)) == len(seam.needs)
    # Seams of one module are laid in their order, so what stands behind would be
    # looked for too early.
    assert set(seam.needs) <= set(before)


@each_seam
def test_what_is_replaced_has_a_guard(seam):
    if seam.how is How.ADD:
        assert seam.guard == Guard(), "there is nothing to guard"
    elif seam.how is How.REPLACE:
        assert seam.guard.parameters or seam.guard.reads


@each_seam
def test_a_maker_is_there_and_takes_what_it_replaces(seam):
    module, _, name = seam.make.partition(":")
    maker = getattr(importlib.import_module(module), name)
    assert maker.__name__ == name
    assert list(inspect.signature(maker).parameters) == ["original"]
    assert maker.__doc__, "it says what it takes the place of"


@each_seam
def test_an_adapter_is_named_after_the_module_that_it_touches(seam):
    adapter = seam.make.partition(":")[0].rpartition(".")[2]
    paths = [module.split(".") for module in seam.modules]
    # `utils` alone says little: there the package may stand before it.
    assert adapter in {path[-1] for path in paths} | {
        "_".join(path[-2:]) for path in paths
    }


def makers() -> set[str]:
    found = set()
    for one in pkgutil.iter_modules(adapters.__path__, f"{adapters.__name__}."):
        module = importlib.import_module(one.name)
        found |= {
            f"{one.name}:{name}"
            for name, value in vars(module).items()
            if name.startswith("make_") and value.__module__ == one.name
        }
    return found


def test_every_maker_has_a_record_and_every_record_a_maker():
    found = makers()
    assert len(found) > 10
    assert found == {seam.make for seam in SEAMS}


@each_seam
def test_the_seam_is_laid_in_the_vllm_that_is_installed(seam):
    import_target(seam)  # the plugin is registered: it waits for just that
    assert state_of(seam) == (State.LAID, "")


@each_seam
def test_the_guard_would_close_on_another_vllm(seam):
    if seam.guard == Guard():
        return

    def renamed(other_than_ever):
        return None

    assert seam.guard.mismatch(renamed) is not None
