"""The memory that C++ makes for tensor parallel on a CPU: no end leaves its name."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.programs import run

RANK = """
from types import SimpleNamespace
import torch
from _posixshmem import shm_open
from vllm.distributed.device_communicators import cpu_communicator

# The kernels of vLLM's CPU build, as far as this goes: they make memory under the
# group's name and the rank in it, and Python knows nothing of that.
def init_shm_manager(name, group_size, rank, threads):
    shm_open(f"/{name}_{rank}", os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
    return 0

def join_shm_manager(handle, name):
    tell("joined", os.path.exists(path))

torch.ops._C = SimpleNamespace(
    init_shm_manager=init_shm_manager, join_shm_manager=join_shm_manager
)
os.environ["VLLM_DIST_IDENT"] = f"vllm-ashutdown-test-{os.getpid()}"
torch.distributed.init_process_group(
    "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
)
group = SimpleNamespace(
    unique_name="tp:0",
    ranks=[0],
    rank=0,
    world_size=1,
    device_group=torch.distributed.group.WORLD,
)
Group = cpu_communicator._CPUSHMDistributed
path = memory_path(Group.make_group_name(group) + "_0")
tell(path)
"""
"""One rank of a group of one, with kernels that need no particular processor."""


def test_the_name_goes_once_every_rank_has_the_memory():
    code, lines, complaints = run(f"""{RANK}
barrier = torch.distributed.barrier
def look(*args):
    tell("barrier", os.path.exists(path))
    barrier(*args)
torch.distributed.barrier = look
kept = Group(group)
tell("made", os.path.exists(path), ledger.owned())
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert (code, complaints) == (-signal.SIGKILL, "")
    assert lines[1:] == ["barrier True", "joined True", "barrier True", "made False []"]


def test_one_whose_group_never_came_together_goes_with_the_fast_exit():
    code, lines, complaints = run(f"""{RANK}
def fails(*args):
    raise RuntimeError("a rank is gone")
torch.distributed.barrier = fails
try:
    Group(group)
except RuntimeError:
    tell(os.path.exists(path))
fast_exit(0)
""")
    assert (code, complaints) == (0, "")
    assert lines[1] == "True"
    assert not Path(lines[0]).exists()


def test_without_the_plugin_an_exit_leaves_it_and_nobody_says_so():
    code, lines, complaints = run(
        f"{RANK}kept = Group(group)\nos._exit(0)", plugin=False
    )
    assert (code, complaints) == (0, "")
    Path(lines[0]).unlink()
