"""What holds for each probe alike."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.inventory.planted import child, refused
from tests.inventory.sides import SEES, SPARES, needs_linux
from vllm_ashutdown.inventory import PROBES, Owned, View, take_baseline
from vllm_ashutdown.inventory import listeners as listeners_module
from vllm_ashutdown.inventory import view as view_module

pytestmark = needs_linux

FAMILIES = (
    "processes",
    "memory",
    "files",
    "sockets",
    "groups",
    "device",
    "interpreter",
)


def test_every_row_has_both_sides():
    for family in FAMILIES:
        importlib.import_module(f"tests.inventory.test_{family}")
    rows = [probe.row for probe in PROBES]
    assert set(rows) == SEES == SPARES
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.row)
def test_a_process_that_vanishes_while_it_is_looked_at(probe, monkeypatch):
    with child() as (process, _):
        pass
    view = View(Owned(processes=(process,)))
    # Alive a moment ago, as the view has it.
    monkeypatch.setattr(View, "living", (process,))
    items = probe.look(view)
    assert probe.row in {"processes", "descriptors"} or not items


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.row)
def test_a_system_without_proc(probe, monkeypatch, tmp_path):
    monkeypatch.setattr(view_module, "PROC", tmp_path / "proc")
    monkeypatch.setattr(view_module, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(listeners_module, "_ask", refused)
    with child() as (process, _):
        owned = Owned(
            processes=(process,),
            memory=frozenset({"psm_x"}),
            semaphores=frozenset({"mp-x"}),
            ports=frozenset({("", 1)}),
            baseline=take_baseline(),
        )
        items = probe.look(View(owned))
        assert items == ({str(process)} if probe.row == "processes" else set())


def test_nothing_of_vllm_or_torch_is_imported_and_psutil_only_when_needed():
    program = (
        "import sys, vllm_ashutdown.inventory as i; i.look(i.Owned()); "
        "print(sorted({'vllm', 'torch', 'psutil', 'pynvml'} & set(sys.modules)))"
    )
    source = Path(view_module.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
