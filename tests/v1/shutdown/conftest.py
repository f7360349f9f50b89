"""What every test here has: real servers, one at a time, and a place for figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.server import Server

_FIGURES = pytest.StashKey[dict[str, float]]()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts a server with these options and keeps it until the test is over."""
    started: list[Server] = []
    with ExitStack() as stack:

        def start(*options: str, **more: Any) -> Server:
            server = Server(tmp_path, *options, **more)
            started.append(server)
            return stack.enter_context(server)

        yield start
    for server in started:  # pytest shows it where the test has failed
        first = server.signalled_at[0] if server.signalled_at else 0.0
        print(f"what {server.log_path} says from the first signal on:")
        for line in server.lines:
            if line.at >= first:
                print(f"{line.at - first:7.3f} {line.text}")


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str, float], None]:
    """Notes a measured time, in seconds; all of them stand at the end of the run.

    The bounds of the tests are loose enough for a loaded machine: the figures tell.
    """
    figures = request.config.stash.setdefault(_FIGURES, {})

    def note(name: str, seconds: float) -> None:
        figures[f"{request.node.name}: {name}"] = seconds

    return note


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints the figures."""
    figures = config.stash.get(_FIGURES, {})
    if figures:
        terminalreporter.section("measured on real vLLM")
    for name, seconds in figures.items():
        terminalreporter.write_line(f"{seconds:7.3f} s  {name}")
