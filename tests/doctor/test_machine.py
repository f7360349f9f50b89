from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from vllm_ashutdown import settings
from vllm_ashutdown.core.reclaim import Leftover, Reclaimed, Verdict
from vllm_ashutdown.doctor import machine as module
from vllm_ashutdown.doctor.configuration import configuration
from vllm_ashutdown.doctor.finding import Finding, Level
from vllm_ashutdown.doctor.machine import GIB, MIB, machine

NONE = Reclaimed((), ())


@pytest.fixture(autouse=True)
def plenty(monkeypatch, tmp_path):
    """A machine with room for everything, until a test takes it away."""
    limits = {resource.RLIMIT_NOFILE: (1024, 1 << 20), resource.RLIMIT_NPROC: (-1, -1)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(os, "statvfs", lambda path: statvfs(4 * GIB))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(module, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(module, "CGROUPS", tmp_path)
    return limits


def statvfs(free: int) -> os.statvfs_result:
    return os.statvfs_result((1, 1, 8 * GIB, free, free, 0, 0, 0, 0, 255))


def findings(left: Reclaimed = NONE) -> dict[str, Finding]:
    return {one.topic: one for one in machine(left)}


def test_with_room_for_everything_there_is_nothing_to_do():
    found = findings()
    assert {one.level for one in found.values()} == {Level.OK}
    assert not any(one.remedy for one in found.values())
    assert found["/dev/shm"].found == "4.0 GiB free of 8.0 GiB"


@pytest.mark.parametrize(
    ("free", "level"),
    [
        (GIB, Level.OK),
        (GIB - 1, Level.WARNING),
        (64 * MIB, Level.WARNING),
        (64 * MIB - 1, Level.PROBLEM),
    ],
)
def test_room_in_shared_memory(monkeypatch, free, level):
    monkeypatch.setattr(os, "statvfs", lambda path: statvfs(free))
    found = findings()["/dev/shm"]
    assert found.level is level
    assert bool(found.remedy) is (level is not Level.OK)


def test_no_shared_memory_at_all(monkeypatch, tmp_path):
    def gone(path: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "statvfs", gone)
    assert findings()["/dev/shm"].level is Level.PROBLEM


@pytest.mark.parametrize(
    ("hard", "level"), [(4096, Level.OK), (4095, Level.WARNING), (-1, Level.OK)]
)
def test_descriptors(plenty, hard, level):
    plenty[resource.RLIMIT_NOFILE] = (1024, hard)
    assert findings()["descriptors"].level is level


@pytest.mark.parametrize(
    ("most", "now", "level"),
    [("1000", 488, Level.OK), ("1000", 489, Level.WARNING), ("max", 9999, Level.OK)],
)
@pytest.mark.parametrize(("line", "folder"), [("0::/a", "a"), ("8:pids:/a", "pids/a")])
def test_processes_of_a_control_group(tmp_path, most, now, level, line, folder):
    place = tmp_path / folder
    place.mkdir(parents=True)
    (tmp_path / "cgroup").write_text(f"9:cpu:/elsewhere\n{line}\n")
    (place / "pids.max").write_text(f"{most}\n")
    (place / "pids.current").write_text(f"{now}\n")
    assert findings()["processes"].level is level


def test_processes_of_a_user_unless_he_is_root(plenty, monkeypatch):
    plenty[resource.RLIMIT_NPROC] = (100, 100)
    assert findings()["processes"].level is Level.WARNING
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert findings()["processes"].level is Level.OK


def test_leftovers_of_the_dead_and_not_those_of_the_living():
    one = Leftover("vLLM (pid 1)", "file", "/tmp/x", Verdict.FOUND)
    found = findings(Reclaimed((one,), ("7-abc",)))["leftovers"]
    assert (found.level, found.found) == (Level.WARNING, "1 of dead instances")
    assert "reclaim --remove" in found.remedy
    assert "refused" not in found.found + found.remedy
    none = findings(Reclaimed((), ("7-abc",)))["leftovers"]
    assert (none.level, none.found) == (
        Level.OK,
        "none of dead instances; 1 living instance",
    )


def test_what_a_reclaim_refuses_is_not_promised_to_go():
    one = Leftover("vLLM (pid 1)", "file", "/tmp/x", Verdict.REFUSED, "it is open")
    found = findings(Reclaimed((one,), ()))["leftovers"]
    assert found.found == "1 of dead instances, 1 of them refused"
    assert "Why: vllm-ashutdown reclaim" in found.remedy
    assert "The next start" not in found.remedy


# -- settings ----------------------------------------------------------------------


@pytest.fixture
def unset(monkeypatch):
    for name in [*os.environ]:
        if name.startswith("VLLM_ASHUTDOWN"):
            monkeypatch.delenv(name)


def configured() -> dict[str, Finding]:
    return {one.topic: one for one in configuration()}


def test_defaults_are_in_order(unset):
    found = configured()
    assert {one.level for one in found.values()} == {Level.OK}
    assert set(found) == {one.name for one in settings.VARIABLES} | {"state directory"}
    assert found[settings.TEARDOWN_SECONDS.name].found == "10 (default)"
    assert found[settings.REPORT.name].found == "not set (default)"


def test_what_is_set_is_in_force(unset, monkeypatch):
    monkeypatch.setenv(settings.TEARDOWN_SECONDS.name, "2.5")
    assert configured()[settings.TEARDOWN_SECONDS.name].found == "2.5"


def test_what_means_nothing_is_named_and_the_default_holds(unset, monkeypatch):
    monkeypatch.setenv(settings.TEARDOWN_SECONDS.name, "soon")
    found = configured()[settings.TEARDOWN_SECONDS.name]
    assert found.level is Level.WARNING
    assert "soon" in found.found
    assert "the default holds: 10" in found.remedy


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("VLLM_ASHUTDOWN_TEARDOWN_SECOND", "Is VLLM_ASHUTDOWN_TEARDOWN_SECONDS meant?"),
        ("VLLM_ASHUTDOWN_" + "Q" * 60, "Unset it."),
    ],
)
def test_a_name_with_a_typing_error_is_found(unset, monkeypatch, name, remedy):
    monkeypatch.setenv(name, "1")
    found = configured()[name]
    assert (found.level, found.remedy) == (Level.WARNING, remedy)


def test_a_report_that_could_not_be_written(unset, monkeypatch, tmp_path):
    monkeypatch.setenv(settings.REPORT.name, str(tmp_path / "report.json"))
    assert "report" not in configured()
    monkeypatch.setenv(settings.REPORT.name, str(tmp_path / "no" / "report.json"))
    assert configured()["report"].level is Level.WARNING


def test_a_state_directory_that_others_can_write_to(unset, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid)
    monkeypatch.setenv(settings.STATE_DIRECTORY.name, str(tmp_path / "lists"))
    assert configured()["state directory"].level is Level.OK
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists").chmod(0o777)
    found = configured()["state directory"]
    assert found.level is Level.WARNING
    assert "is not this user's alone" in found.found
