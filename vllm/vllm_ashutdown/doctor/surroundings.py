"""The budget of a stop against what would cut it short: systemd, Kubernetes, Docker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from .. import settings
from .finding import Finding, Level

GRACE = "TERMINATION_GRACE_PERIOD_SECONDS"
"""An environment variable for what Kubernetes does not tell a pod by itself."""

KUBERNETES_SECONDS = 30.0
"""Its ``terminationGracePeriodSeconds`` where the pod names none."""

DOCKER_SECONDS = 10.0
"""What ``docker stop`` gives where nothing else is said."""

DOCKER = Path("/.dockerenv")
CGROUP = Path("/proc/self/cgroup")
SYSTEMCTL_SECONDS = 5.0

_UNITS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 7 * 86400.0,
}


def surroundings(drain: float, unit: str | None) -> Iterator[Finding]:
    """Holds the time that a stop may take against the time that it is given.

    Args:
        drain: The server's ``--shutdown-timeout``, in seconds.
        unit: The systemd unit that it runs in, if the caller knows it.
    """
    total = drain + settings.teardown_seconds()
    yield Finding(
        "budget",
        Level.OK,
        f"a stop takes {total:g} s at most: {drain:g} s of --shutdown-timeout, and "
        f"{settings.teardown_seconds():g} s of teardown",
    )
    found = [*_systemd(total, unit), *_kubernetes(total, os.environ), *_docker(total)]
    yield from found
    if not found:
        yield Finding(
            "surroundings",
            Level.OK,
            "unknown: no systemd unit and no pod is around this process. Name a unit "
            f"with --unit, or set {GRACE}",
        )


def _compare(topic: str, total: float, given: float, what: str, how: str) -> Finding:
    if given < total:
        return Finding(
            topic, Level.PROBLEM, f"{what} kills after {given:g} s, in mid-stop", how
        )
    return Finding(topic, Level.OK, f"{what} waits {given:g} s: enough")


# -- systemd -----------------------------------------------------------------------


def _systemd(total: float, unit: str | None) -> Iterator[Finding]:
    name, user = (unit, False) if unit else _unit_of(_read(CGROUP))
    if name is None:
        return
    given = _timeout_of(name, user=user)
    if given is None:
        yield Finding(
            "systemd",
            Level.WARNING,
            f"it is not known how long systemd waits for {name}",
            f"TimeoutStopSec= must be at least {total:g}.",
        )
        return
    how = f"Set TimeoutStopSec={total:g} or more in {name}."
    yield _compare("systemd", total, given, f"systemd ({name})", how)


def _unit_of(cgroups: str) -> tuple[str | None, bool]:
    """The service that a process is in, and whether it is one of its user's own.

    A scope, such as a login's, is no server's: it has no time-out of its stop.
    """
    for line in cgroups.splitlines():
        number, controllers, path = line.split(":", 2)
        names = [one for one in path.split("/") if one.endswith(".service")]
        is_systemds = number == "0" or controllers == "name=systemd"
        if not is_systemds or not names:
            continue
        manager = names[0].startswith("user@")
        if manager and len(names) == 1:
            return None, False
        return names[-1], manager
    return None, False


def _timeout_of(unit: str, *, user: bool) -> float | None:
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        return None
    command = [systemctl, *(["--user"] if user else [])]
    command += ["show", "--property=LoadState,TimeoutStopUSec", "--", unit]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=SYSTEMCTL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    if said.get("LoadState") != "loaded":
        return None
    return parse_span(said.get("TimeoutStopUSec", ""))


def parse_span(text: str) -> float | None:
    """systemd's way to write a span of time, ``1min 30s``, in seconds."""
    if text == "infinity":
        return float("inf")
    words = text.split()
    found = [re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", word) for word in words]
    total = 0.0
    for one in found:
        if one is None or one[2] not in _UNITS:
            return None
        total += float(one[1]) * _UNITS[one[2]]
    return total if words else None


# -- containers --------------------------------------------------------------------


def _kubernetes(total: float, environment: Mapping[str, str]) -> Iterator[Finding]:
    text = environment.get(GRACE, "").strip()
    how = (
        f"Set terminationGracePeriodSeconds to {total:g} or more, and a preStop's time."
    )
    if text:
        try:
            given = float(text)
        except ValueError:
            yield Finding(
                "Kubernetes",
                Level.WARNING,
                f"{GRACE} is {text!r}, which is no number of seconds",
                how,
            )
            return
        yield _compare("Kubernetes", total, given, "Kubernetes", how)
    elif "KUBERNETES_SERVICE_HOST" in environment:
        words = (
            "the grace period of this pod cannot be known from inside; by default it "
            f"is {KUBERNETES_SECONDS:g} s"
        )
        short = total > KUBERNETES_SECONDS
        yield Finding(
            "Kubernetes",
            Level.WARNING if short else Level.OK,
            words,
            f"{how} Put it into {GRACE} to have it checked." if short else "",
        )


def _docker(total: float) -> Iterator[Finding]:
    if not DOCKER.exists() or "KUBERNETES_SERVICE_HOST" in os.environ:
        return
    short = total > DOCKER_SECONDS
    yield Finding(
        "Docker",
        Level.WARNING if short else Level.OK,
        f"`docker stop` kills after {DOCKER_SECONDS:g} s unless it is told otherwise",
        f"Use --stop-timeout {total:g}, or stop_grace_period." if short else "",
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
