from __future__ import annotations

import sys
import types

import pytest
from msgspec import structs

from tests.inventory.planted import child
from tests.inventory.sides import found, needs_linux, sees, spares
from vllm_ashutdown.inventory import Process, device

pytestmark = needs_linux


class NVMLError(Exception):
    pass


class NotSupportedError(NVMLError):
    pass


class Nvml(types.ModuleType):
    """One GPU that tells who uses it, and one that cannot."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NotSupportedError

    def __init__(self, *uses: tuple[int, int | None]) -> None:
        super().__init__("pynvml")
        self.uses = uses
        self.inits = 0
        self.has_driver = True

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.has_driver:
            raise NVMLError
        self.inits += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.inits -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, index: int) -> list:  # noqa: N802
        if index == 0:
            raise NotSupportedError
        return [
            types.SimpleNamespace(pid=pid, usedGpuMemory=used)
            for pid, used in self.uses
        ]


GONE = Process(2**22 + 1, 1.0, "EngineCore")  # above the highest pid there can be


@sees("device memory")
@pytest.mark.parametrize("module", ["pynvml", "vllm.third_party.pynvml"])
def test_memory_that_the_driver_still_counts_for_a_process(plant, module):
    nvml = Nvml((GONE.pid, 3 * 2**20), (1, 2**20))
    plant({"pynvml": nvml} if module == "pynvml" else {"pynvml": nvml, module: nvml})
    items = found("device memory", processes=(GONE,))
    assert items == {f"3 MiB of GPU 1 by {GONE}"}
    assert nvml.inits == 0
    nvml.uses = ((GONE.pid, None),)
    assert found("device memory", processes=(GONE,)) == {
        f"some memory of GPU 1 by {GONE}"
    }
    nvml.uses = ()
    assert found("device memory", processes=(GONE,)) == set()


@spares("device memory")
def test_memory_of_others(plant):
    with child() as (process, _):
        plant({"pynvml": Nvml((process.pid, 2**20))})
        recycled = structs.replace(process, start=process.start - 1)
        assert found("device memory", processes=(process,)) != set()
        assert found("device memory", processes=(recycled,)) == set()
        assert found("device memory", processes=(GONE,)) == set()


@spares("device memory")
def test_no_driver(plant):
    nvml = Nvml((GONE.pid, 2**20))
    nvml.has_driver = False
    plant({"pynvml": nvml})
    assert found("device memory", processes=(GONE,)) == set()


@spares("device memory")
def test_nvml_is_imported_only_if_asked(plant, monkeypatch):
    nvml = Nvml((GONE.pid, 2**20))
    for name in ("pynvml", "vllm.third_party.pynvml"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    imported = {"vllm.third_party.pynvml": nvml}

    def import_module(name: str) -> object:
        if name not in imported:
            raise ImportError(name)
        return imported[name]

    monkeypatch.setattr(device.importlib, "import_module", import_module)
    owned = {"processes": (GONE,)}
    assert found("device memory", **owned) == set()
    assert len(found("device memory", **owned, ask_devices=True)) == 1
    imported.clear()
    assert found("device memory", **owned, ask_devices=True) == set()
