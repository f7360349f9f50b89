from __future__ import annotations

import types

import pytest

from tests.inventory.sides import found, needs_linux, sees, spares
from vllm_ashutdown.inventory import take_baseline

pytestmark = needs_linux


def torch_with(groups: dict[object, str], main: object) -> dict[str, object]:
    """As much of torch as there is to look at."""
    c10d = types.SimpleNamespace(
        _world=types.SimpleNamespace(pg_names=groups),
        GroupMember=types.SimpleNamespace(WORLD=main),
    )
    distributed = types.SimpleNamespace(
        is_initialized=lambda: bool(groups),
        get_backend=lambda: "gloo",
        get_rank=lambda: 0,
        get_world_size=lambda: 2,
    )
    return {
        "torch.distributed": distributed,
        "torch.distributed.distributed_c10d": c10d,
    }


DEFAULT = "default (gloo, rank 0 of 2)"


@sees("process groups")
def test_groups_that_nobody_destroyed(plant):
    groups: dict[object, str] = {"main": "0", "other": "1"}
    plant(torch_with(groups, "main"))
    assert found("process groups") == {DEFAULT, "group 1"}
    groups.clear()
    assert found("process groups") == set()


@sees("process groups")
def test_a_torch_that_does_not_tell_of_its_groups(plant):
    modules = torch_with({"main": "0"}, "main")
    plant(modules | {"torch.distributed.distributed_c10d": types.ModuleType("c10d")})
    assert found("process groups") == {DEFAULT}


@spares("process groups")
def test_groups_of_the_host(plant):
    groups: dict[object, str] = {"main": "0"}
    plant(torch_with(groups, "main"))
    before = take_baseline()
    groups["other"] = "1"
    assert found("process groups", baseline=before) == {"group 1"}


@spares("process groups")
@pytest.mark.parametrize("there", [None, types.ModuleType("torch.distributed")])
def test_no_torch_or_one_without_groups(plant, there):
    plant({"torch.distributed": there})
    assert found("process groups") == set()
