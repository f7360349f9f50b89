"""A real engine in Ray Serve: closed with its deployment, replaced, deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.rays import SECONDS, cluster
from tests.scenes import play

# By name: it warns at its import, which no test may.
SCENES = "tests.hosts.serve_scenes"

pytestmark = [pytest.mark.hosts, pytest.mark.real, pytest.mark.timeout(3000)]


@pytest.mark.parametrize(
    ("scene", "engines"), [("redeployed_and_deleted", 2), ("shut_down", 1)]
)
def test_each_engine_is_closed_in_order(tmp_path: Path, scene: str, engines: int):
    with cluster() as rays:
        found = play(
            SCENES,
            scene,
            tmp_path,
            environment=rays.environment,
            seconds=SECONDS,
        )
        assert found["left"] == []
        assert rays.faults() == []
        assert rays.log().count("audit done") == engines
