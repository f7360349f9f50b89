"""A core that starts leaves when it is told, and one that runs does what vLLM says."""

from __future__ import annotations

import enum
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_ashutdown.adapters import core
from vllm_ashutdown.adapters.core import ends_the_start, make_handle_shutdown


class State(enum.Enum):
    RUNNING = 0


@pytest.fixture(autouse=True)
def _starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core._Start, "is_over", False)


def test_until_its_loop_is_there_a_signal_ends_the_start():
    seen: list[Any] = []
    handle = ends_the_start(lambda number, frame: seen.append(number))
    with pytest.raises(SystemExit) as left:
        handle(signal.SIGTERM, None)
    assert left.value.code == 0
    assert seen == [signal.SIGTERM], "vLLM has noted it, too"


def test_a_core_that_has_failed_is_not_interrupted_on_its_way_out():
    # vLLM gives the signal its default back first of all.
    before = signal.getsignal(signal.SIGUSR1)
    core._CoreSignals.signal(signal.SIGUSR1, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, before)
    ends_the_start(lambda number, frame: None)(signal.SIGTERM, None)


def test_from_then_on_it_is_vllms():
    engine = SimpleNamespace(shutdown_state=State.RUNNING)
    asked = make_handle_shutdown(lambda self: True)
    assert asked(engine) is True
    seen: list[Any] = []
    ends_the_start(lambda number, frame: seen.append(number))(signal.SIGTERM, None)
    assert seen == [signal.SIGTERM]
