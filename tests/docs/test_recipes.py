"""The recipes are files that their readers can read, and the times in them fit."""

from __future__ import annotations

import asyncio
import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.served import said, served
from tests.stub_core import StubCore, make_engine
from vllm_ashutdown import settings, watchdog
from vllm_ashutdown.adapters.endpoint_plugins import DrainEndpoint
from vllm_ashutdown.exit_code import ExitCode
from vllm_ashutdown.telling.notify import MARGIN_SECONDS
from vllm_ashutdown.tree.ending import REAP_SECONDS

RECIPES = Path(__file__).resolve().parent.parent.parent / "docs" / "recipes"
COMMAND = "vllm-ashutdown"

NAME = settings.TEARDOWN_SECONDS.name
MARGIN = 10.0
"""As the recipes give it to the watchdog."""


def read(name: str) -> str:
    return (RECIPES / name).read_text()


def option(words: list[str], name: str) -> float:
    return float(words[words.index(name) + 1])


def fits(grace: float, words: list[str], teardown: str, hook: float = 0.0) -> bool:
    """The one sum."""
    drain = option(words, "--shutdown-timeout")
    return grace >= hook + drain + float(teardown) + MARGIN


# -- each of them ------------------------------------------------------------------


def container() -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod of the deployment, and its container."""
    deployment = yaml.safe_load(read("kubernetes.yaml"))
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    pod = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    (one,) = pod["spec"]["containers"]
    return pod["spec"], one


def hook() -> str:
    """The program of the preStop hook."""
    *command, program = container()[1]["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["python3", "-c"]
    return program


def test_kubernetes_waits_for_the_hook_and_for_the_stop():
    pod, one = container()
    environment = {row["name"]: row["value"] for row in one["env"]}
    waits = float(re.search(r"timeout=(\d+)\"", hook()).group(1))
    grace = pod["terminationGracePeriodSeconds"]
    assert fits(grace, one["args"], environment[NAME], waits)
    assert not fits(grace - 1, one["args"], environment[NAME], waits)
    assert "ashutdown_drain" in environment["VLLM_PLUGINS"].split(",")
    assert one["readinessProbe"]["httpGet"]["path"] == "/health"
    assert one["livenessProbe"]["httpGet"]["path"] == "/version"


def test_systemd_waits_for_the_stop_and_restarts_what_died():
    unit = configparser.ConfigParser(strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(read("vllm.service"))
    service = unit["Service"]
    name, _, teardown = service["Environment"].partition("=")
    words = shlex.split(service["ExecStart"])
    assert name == NAME
    assert Path(words[0]).name == COMMAND
    assert fits(float(service["TimeoutStopSec"]), words, teardown)
    assert (service["Type"], service["NotifyAccess"]) == ("exec", "main")
    assert service["Restart"] == "on-failure"


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here"
)
def test_systemd_knows_each_key(tmp_path):
    def complaints(text: str) -> str:
        unit = tmp_path / "vllm.service"
        unit.write_text(re.sub(r"/opt/\S+", sys.executable, text))
        command = ["systemd-analyze", "verify", "--man=no", str(unit)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    text = read("vllm.service")
    assert "vllm.service:" not in complaints(text)
    assert "vllm.service:" in complaints(text.replace("KillMode", "KilMode"))


def test_compose_waits_for_the_stop_and_restarts_what_died():
    service = yaml.safe_load(read("compose.yaml"))["services"]["vllm"]
    grace = float(service["stop_grace_period"].removesuffix("s"))
    assert fits(grace, service["command"], service["environment"][NAME])
    assert (service["stop_signal"], service["restart"]) == ("SIGTERM", "on-failure")
    assert service["init"] is True


def test_the_container_runs_the_server_without_a_shell():
    text = read("Dockerfile")
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    assert json.loads(entry) == [COMMAND, "serve"]
    grace = float(re.search(r"--stop-timeout (\d+)", text).group(1))
    words = re.search(r"MODEL (--.*)$", text, re.MULTILINE).group(1).split()
    assert fits(grace, words, str(settings.TEARDOWN_SECONDS.default))
    images = {container()[1]["image"], re.search(r"-t (\S+)", text).group(1)}
    images.add(yaml.safe_load(read("compose.yaml"))["services"]["vllm"]["image"])
    assert len(images) == 1


def test_the_margin_is_enough_for_the_watchdog():
    thread = watchdog.TELL_SECONDS + REAP_SECONDS
    slowest = watchdog.MARGIN_SECONDS + max(thread, watchdog.LOCKED_SECONDS)
    assert slowest <= 5, "as the page says"
    assert slowest < MARGIN <= MARGIN_SECONDS


def test_the_page_names_each_file_and_the_default():
    page = read("README.md")
    for path in RECIPES.iterdir():
        assert path.name == "README.md" or f"({path.name})" in page
    assert f"`{NAME}` ({settings.TEARDOWN_SECONDS.default:.0f})" in page
    for code in (ExitCode.ENGINE_DIED, ExitCode.WATCHDOG):
        assert str(int(code)) in page


# -- the hook, as it stands --------------------------------------------------------


@pytest.fixture
def core() -> Iterator[StubCore]:
    one = StubCore()
    yield one
    one.close()


async def test_the_hook_drains_and_is_over_with_the_last_stream(core, monkeypatch):
    key = "secret"
    monkeypatch.setenv("VLLM_API_KEY", key)
    async with served(make_engine(core), DrainEndpoint(), api_key=[key]) as server:
        stream, _ = await server.stream()
        port = str(server.client.base_url.port)
        with said("drain prepared") as prepared:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", hook().replace("8000", port)
            )
            await asyncio.wait_for(prepared.wait(), 20)
        assert process.returncode is None
        core.finish_all()
        assert (await stream).endswith(b"[DONE]\n\n")
        assert await asyncio.wait_for(process.wait(), 20) == 0


# -- a supervisor, as it stands ----------------------------------------------------

CHILD = """
import pathlib, sys
runs = pathlib.Path(sys.argv[1])
runs.write_text(runs.read_text() + "x")
sys.exit({codes}[len(runs.read_text()) - 1])
"""


def test_a_supervisor_restarts_what_died_and_not_what_was_stopped(tmp_path):
    pytest.importorskip("supervisor", reason="supervisor is not installed")
    conf = configparser.RawConfigParser()
    conf.read_string(read("supervisord.conf"))
    program = conf["program:vllm"]
    name, _, teardown = program["environment"].partition("=")
    words = shlex.split(program["command"])
    assert (name, words[0]) == (NAME, COMMAND)
    assert fits(float(program["stopwaitsecs"]), words, teardown.strip('"'))

    codes = [int(ExitCode.ENGINE_DIED), int(ExitCode.WATCHDOG), int(ExitCode.STOPPED)]
    child, runs = tmp_path / "child.py", tmp_path / "runs"
    child.write_text(CHILD.format(codes=codes))
    runs.write_text("")
    program["command"] = shlex.join([sys.executable, str(child), str(runs)])
    for key in ("logfile", "pidfile"):
        conf["supervisord"][key] = str(tmp_path / key)
    path = tmp_path / "supervisord.conf"
    with path.open("w") as file:
        conf.write(file)
    supervisor = subprocess.Popen(
        # It warns of its own way to find its resources.
        [sys.executable, "-W", "ignore", "-m", "supervisor.supervisord", "-c", path],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    ends = []
    with supervisor, supervisor.stdout as lines:
        for line in lines:
            found = re.search(r"exited: vllm \(exit status (\d+); (.*)\)", line)
            if found is not None:
                ends.append((int(found[1]), found[2]))
                if found[2] == "expected":
                    supervisor.terminate()
    assert [code for code, _ in ends] == codes
    assert [what for _, what in ends] == ["not expected", "not expected", "expected"]
    assert runs.read_text() == "xxx", "it was not begun again"
