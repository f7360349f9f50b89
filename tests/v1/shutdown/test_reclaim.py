"""What a killed server leaves, the next one takes away, and nothing of a living one."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients import Clients
from tests.server import Server
from tests.topologies import TOPOLOGIES
from vllm_ashutdown import settings

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

STREAMS = 4
RECLAIMED = "[shutdown] reclaimed what"


@pytest.mark.parametrize(
    ("topology", "beside"),
    [
        ("one", False),
        pytest.param("one", True, marks=pytest.mark.matrix),
        pytest.param("tp2", False, marks=pytest.mark.matrix),
        pytest.param("dp2", False, marks=pytest.mark.matrix),
    ],
)
def test_the_next_start_reclaims(tmp_path: Path, topology: str, beside: bool) -> None:
    lists = tmp_path / "lists"

    def server(name: str, topology: str = "one") -> Server:
        (tmp_path / name).mkdir()
        return Server(
            tmp_path / name,
            topology=TOPOLOGIES[topology],
            environment={settings.STATE_DIRECTORY.name: str(lists)},
        )

    with ExitStack() as stack:
        living = stack.enter_context(server("living")) if beside else None
        killed = stack.enter_context(server("killed", topology))
        with (
            Clients(killed.address) as clients,
            clients.flowing(
                *(
                    clients.raw_stream("/v1/completions", start=100 * at)
                    for at in range(STREAMS)
                )
            ),
        ):
            killed.signal(signal.SIGKILL)
            _, alive = killed.gone_within(10)
            assert alive == []
        left = killed.leftovers()
        assert [one for one in left if one.startswith("temporary file")], "or no test"

        after = stack.enter_context(server("next"))
        line = after.wait_for(RECLAIMED, 0)
        assert line is not None
        assert f"(pid {killed.process.pid})" in line.text
        assert killed.leftovers() == []
        if living is not None:
            assert living.wait_for(RECLAIMED, 0) is None
            assert living.get("/health")[0] == 200
            living.signal(signal.SIGTERM)
            assert living.faults(living.wait(15)) == []
        after.signal(signal.SIGTERM)
        assert after.faults(after.wait(15)) == []
    assert not lists.exists()
