"""The directory that several API servers share: who removes what of it, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import run

PARENT = """
import multiprocessing
from vllm.v1.metrics import prometheus
prometheus.setup_multiprocess_prometheus()
directory = os.environ["PROMETHEUS_MULTIPROC_DIR"]
tell(directory)
"""

CHILD = """
from prometheus_client import Counter, Gauge
from vllm.v1.metrics import prometheus
Gauge("live", "", multiprocess_mode="livesum").set(1)
Counter("total", "").inc()
directory = os.environ["PROMETHEUS_MULTIPROC_DIR"]
files = lambda: sorted(name.split("_")[0] for name in os.listdir(directory))
tell(files())
prometheus.shutdown_prometheus()
tell(files())
"""

# The second is how a parent of several servers leaves, by its signal handler.
each_end = pytest.mark.parametrize("end", ["fast_exit(0)", "raise SystemExit"])


@pytest.fixture
def unset(monkeypatch):
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)


@each_end
def test_the_parent_removes_the_directory_that_it_has_made(end, unset):
    code, lines, complaints = run(f"{PARENT}tell(*ledger.owned()[0])\n{end}")
    assert (code, complaints) == (0, "")
    assert lines[1] == f"directory {lines[0]}"
    assert not Path(lines[0]).exists()


def test_a_users_own_directory_stays(tmp_path):
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    code, lines, _ = run(
        f"{PARENT}tell(ledger.owned())\nfast_exit(0)", environment=environment
    )
    assert (code, lines) == (0, [str(tmp_path), "[]"])
    assert tmp_path.is_dir()


def test_a_child_leaves_the_directory_to_its_parent(unset):
    code, lines, complaints = run(f"""
{PARENT}
for method in ("fork", "spawn"):
    context = multiprocessing.get_context(method)
    child = context.Process(target=fast_exit, args=(0,))
    child.start()
    child.join()
    tell(method, child.exitcode, os.path.isdir(directory))
""")
    assert (code, complaints) == (0, "")
    assert lines[1:] == ["fork 0 True", "spawn 0 True"]
    assert not Path(lines[0]).exists()


@each_end
def test_a_process_is_dead_when_it_ends_and_not_with_its_engine(end, tmp_path):
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    code, lines, complaints = run(CHILD + end, environment=environment)
    assert (code, complaints) == (0, "")
    # Another engine may run on; and /metrics is open until the very end.
    assert lines == ["['counter', 'gauge']"] * 2
    left = [path.name.split("_")[0] for path in tmp_path.iterdir()]
    assert left == ["counter"], "what a dead process has counted still counts"


def test_without_the_plugin_a_dead_servers_gauge_lives_on(tmp_path):
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    run(CHILD, plugin=False, environment=environment)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("plugin", [True, False])
def test_an_engine_in_the_process_that_made_it_stops_without_an_error(plugin, unset):
    code, lines, _ = run(
        f"""{PARENT}
prometheus.logger.error = lambda text, *args: tell(text)
prometheus.shutdown_prometheus()
""",
        plugin=plugin,
    )
    assert code == 0
    assert lines[1:] == ([] if plugin else ["Error during metrics cleanup: %s"])
