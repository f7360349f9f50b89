"""Memory of GPUs, as NVML tells it of each process."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from .probe import Probe
from .view import View

_NVML = ("pynvml", "vllm.third_party.pynvml")


def _device_memory(view: View) -> frozenset[str]:
    # The driver may take a while to clear up behind a process that is gone, so
    # these need not be alive. Under a pid that was given away it is another's.
    holders = {one.pid: one for one in view.owned.processes if not one.is_replaced}
    nvml = _nvml(ask=view.owned.ask_devices) if holders else None
    if nvml is None:
        return frozenset()
    try:
        nvml.nvmlInit()  # counted: it takes nothing from others who use it
    except nvml.NVMLError:
        return frozenset()  # no driver, so no memory of it
    try:
        return frozenset(
            f"{_size(used)} of GPU {index} by {holders[pid]}"
            for index, pid, used in _uses(nvml)
            if pid in holders
        )
    finally:
        nvml.nvmlShutdown()


def _nvml(*, ask: bool) -> Any:
    for name in _NVML:
        if name in sys.modules:
            return sys.modules[name]
    for name in _NVML if ask else ():
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    return None


def _uses(nvml: Any) -> Iterator[tuple[int, int, int | None]]:
    """Index of the device, pid and bytes; ``None`` where the driver hides these."""
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        try:
            uses = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except nvml.NVMLError_NotSupported:
            continue
        for use in uses:
            yield index, use.pid, use.usedGpuMemory


def _size(used: int | None) -> str:
    return "some memory" if used is None else f"{used / 2**20:.0f} MiB"


DEVICE_MEMORY = Probe(
    row="device memory",
    what="GPU memory of the instance's processes",
    noun="device memory,",
    state="is held",
    look=_device_memory,
)
