from __future__ import annotations

import os
from pathlib import Path

import pytest

from vllm_ashutdown.doctor import surroundings as module
from vllm_ashutdown.doctor.finding import Finding, Level
from vllm_ashutdown.doctor.surroundings import GRACE, parse_span, surroundings

IN_A_SERVICE = "0::/system.slice/vllm.service\n"
IN_A_USERS_SERVICE = (
    "1:name=systemd:/user.slice/user-7.slice/user@7.service/app.slice/vllm.service\n"
)
IN_A_LOGIN = "0::/user.slice/user-7.slice/session-3.scope\n"
IN_A_TERMINAL = "0::/user.slice/user-7.slice/user@7.service/app.slice/x.scope\n"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No systemd, no pod and no container around, and 10 s of teardown."""
    for name in (GRACE, "KUBERNETES_SERVICE_HOST", "VLLM_ASHUTDOWN_TEARDOWN_SECONDS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(module, "DOCKER", tmp_path / "docker")
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def systemd(monkeypatch, tmp_path):
    """A systemctl that says this of whatever unit it is asked for."""

    def systemd(timeout: str, state: str = "loaded", code: int = 0) -> Path:
        path, asked = tmp_path / "systemctl", tmp_path / "asked"
        path.write_text(
            f'#!/bin/sh\necho "$@" >> {asked}\n'
            f"echo LoadState={state}\necho 'TimeoutStopUSec={timeout}'\nexit {code}\n"
        )
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
        return asked

    return systemd


def cgroup(text: str) -> None:
    module.CGROUP.write_text(text)


def findings(drain: float = 0.0, unit: str | None = None) -> dict[str, Finding]:
    return {one.topic: one for one in surroundings(drain, unit)}


def test_the_budget_is_drain_and_teardown(monkeypatch):
    monkeypatch.setenv("VLLM_ASHUTDOWN_TEARDOWN_SECONDS", "5")
    assert "35 s at most" in findings(30)["budget"].found


@pytest.mark.parametrize("text", ["", IN_A_LOGIN, IN_A_TERMINAL])
def test_where_nothing_is_around_it_says_that_it_does_not_know(text):
    cgroup(text)
    found = findings()
    assert set(found) == {"budget", "surroundings"}
    assert found["surroundings"].found.startswith("unknown")


@pytest.mark.parametrize(
    ("timeout", "level"),
    [
        ("1min 30s", Level.OK),
        ("40s", Level.OK),
        ("39s", Level.PROBLEM),
        ("infinity", Level.OK),
        ("nonsense", Level.WARNING),
        ("", Level.WARNING),
    ],
)
def test_systemd_must_wait_for_as_long_as_a_stop_may_take(systemd, timeout, level):
    asked = systemd(timeout)
    cgroup(IN_A_SERVICE)
    found = findings(30)["systemd"]
    assert found.level is level
    assert "vllm.service" in found.found
    if level is not Level.OK:
        assert "40" in found.remedy
    assert "--user" not in asked.read_text()


def test_a_users_own_service_is_asked_for_of_his_own_systemd(systemd):
    asked = systemd("1s")
    cgroup(IN_A_USERS_SERVICE)
    assert findings()["systemd"].level is Level.PROBLEM
    assert "--user" in asked.read_text()


def test_a_unit_can_be_named(systemd):
    asked = systemd("5s")
    assert findings(unit="other.service")["systemd"].level is Level.PROBLEM
    assert "other.service" in asked.read_text()


def test_a_unit_that_is_not_there_is_not_known(systemd):
    systemd("1min 30s", state="not-found")
    assert findings(unit="typo.service")["systemd"].level is Level.WARNING


def test_without_systemctl_it_is_not_known():
    cgroup(IN_A_SERVICE)
    assert findings()["systemd"].level is Level.WARNING


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1min 30s", 90),
        ("500ms", 0.5),
        ("2h", 7200),
        ("1.5s", 1.5),
        ("infinity", float("inf")),
        ("0", None),
        ("5 parsecs", None),
        ("5parsecs", None),
        ("", None),
    ],
)
def test_a_span_as_systemd_writes_it(text, seconds):
    assert parse_span(text) == seconds


@pytest.mark.parametrize(
    ("grace", "drain", "level"),
    [
        ("40", 30, Level.OK),
        ("39", 30, Level.PROBLEM),
        ("soon", 30, Level.WARNING),
        (None, 30, Level.WARNING),
        (None, 20, Level.OK),
    ],
)
def test_a_pods_grace_period(monkeypatch, grace, drain, level):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    if grace is not None:
        monkeypatch.setenv(GRACE, grace)
    found = findings(drain)["Kubernetes"]
    assert found.level is level
    assert ("terminationGracePeriodSeconds" in found.remedy) is (level is not Level.OK)


@pytest.mark.parametrize(("drain", "level"), [(0, Level.OK), (1, Level.WARNING)])
def test_docker_stop(monkeypatch, drain, level):
    module.DOCKER.touch()
    assert findings(drain)["Docker"].level is level
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert "Docker" not in findings(drain), (
        "a pod's containers are not docker's to stop"
    )
