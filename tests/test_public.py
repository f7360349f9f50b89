"""What a program sees of the package, and what it costs a process to have it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import vllm_ashutdown


def fresh(code: str) -> list[str]:
    """The modules that ``code`` imports in a process of its own."""
    program = (
        "import json, sys\n"
        "before = set(sys.modules)\n"
        f"{code}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def foreign(modules: list[str]) -> set[str]:
    """The packages among ``modules`` that are neither Python's nor ours."""
    tops = {name.partition(".")[0] for name in modules}
    return tops - set(sys.stdlib_module_names) - {"vllm_ashutdown"}


def test_every_public_name_is_there():
    assert vllm_ashutdown.__all__ == sorted(vllm_ashutdown.__all__)
    for name in vllm_ashutdown.__all__:
        assert getattr(vllm_ashutdown, name) is not None
    star: dict[str, object] = {}
    exec("from vllm_ashutdown import *", star)
    assert set(vllm_ashutdown.__all__) <= set(star)


def test_the_late_names_are_the_real_ones():
    from vllm_ashutdown.core.mode import Mode
    from vllm_ashutdown.core.report import ShutdownReport

    assert vllm_ashutdown.Mode is Mode
    assert vllm_ashutdown.ShutdownReport is ShutdownReport


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'shutdown_now'"):
        _ = vllm_ashutdown.shutdown_now
    assert not hasattr(vllm_ashutdown, "Phase")


def test_our_errors_can_be_caught_as_one():
    for error in (
        vllm_ashutdown.EngineShutdownError,
        vllm_ashutdown.InvalidSettingError,
    ):
        assert issubclass(error, vllm_ashutdown.AShutdownError)
    ended = vllm_ashutdown.EngineShutdownError("over", output="so far")
    assert (str(ended), ended.message, ended.output) == ("over", "over", "so far")
    assert vllm_ashutdown.EngineShutdownError("over").output is None


def test_to_import_it_imports_nothing_else():
    modules = fresh("import vllm_ashutdown")
    assert foreign(modules) == set()
    ours = {name for name in modules if name.startswith("vllm_ashutdown")}
    assert ours == {
        "vllm_ashutdown",
        "vllm_ashutdown.errors",
        "vllm_ashutdown.version",
    }


def test_to_register_imports_no_adapter_and_nothing_of_others():
    modules = fresh("import vllm_ashutdown; vllm_ashutdown.register()")
    # What its records are made of; each process of vLLM's has imported that.
    assert foreign(modules) <= {"msgspec", "typing_extensions"}
    assert "vllm_ashutdown.seams.registry" in modules, "it did register"
    assert not [name for name in modules if ".adapters" in name]
    assert not [name for name in modules if ".core" in name]
    assert "asyncio" not in modules


def test_the_core_knows_asyncio_and_not_vllm():
    modules = fresh(
        "import importlib, pkgutil, vllm_ashutdown.core as core\n"
        "for one in pkgutil.iter_modules(core.__path__, 'vllm_ashutdown.core.'):\n"
        "    importlib.import_module(one.name)"
    )
    assert "vllm_ashutdown.core.order" in modules
    # multiprocessing has a name of its own for the main module.
    others = {"anyio", "sniffio", "idna", "typing_extensions", "__mp_main__", "msgspec"}
    assert foreign(modules) <= others
    assert not [name for name in modules if ".adapters" in name or ".http" in name]


def test_switched_off_it_costs_next_to_nothing():
    modules = fresh(
        "import os; os.environ['VLLM_ASHUTDOWN'] = '0'\n"
        "import vllm_ashutdown; vllm_ashutdown.register(); vllm_ashutdown.register()"
    )
    assert not [name for name in modules if ".seams" in name]
