"""A real ``LLM`` in a program, with a core process and without."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.scenes import INTERRUPTS, play
from tests.v1.shutdown import llm_scenes

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

TIMES = {INTERRUPTS: os.environ.get(INTERRUPTS, "5")}
IN_PROCESS = TIMES | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
CODES = {"an_exception_on_the_way_out": 1, "sys_exit": 3}

NEVER = re.compile(r"(?!)")
"""vLLM's own stop is not what is asked about here."""

ELSEWHERE = ("in_process", "core_process", "what_changes_in_the_environment")

more = pytest.mark.matrix


def test_in_one_process(tmp_path: Path):
    found = play(
        llm_scenes.__name__,
        "in_process",
        tmp_path,
        options=("-X", "dev"),
        environment=IN_PROCESS,
    )
    assert min(found["closing"]) < 0.5
    # The first has imported what the others found.
    assert found["levels"][2] < 1.1 * found["levels"][0]


@pytest.mark.parametrize(
    "scene",
    [
        "core_process",
        *(
            pytest.param(scene, marks=more)
            for scene in llm_scenes.SCENES
            if scene not in ELSEWHERE
        ),
    ],
)
def test_with_a_core_process(tmp_path: Path, scene: str):
    found = play(
        llm_scenes.__name__,
        scene,
        tmp_path,
        options=("-X", "dev"),
        environment=TIMES,
        code=CODES.get(scene, 0),
    )
    if "closing" in found:
        assert min(found["closing"]) < 1.5  # 0.5 where nobody else uses the machine


@more
def test_the_environment_is_as_vllm_leaves_it(tmp_path: Path):
    """Which names it changes itself is its own affair; there is none more."""
    changed = []
    for number, of_stock in enumerate(
        ({"environment": {"VLLM_ASHUTDOWN": "0"}, "bad": NEVER, "killed": True}, {})
    ):
        temporary = tmp_path / str(number)
        temporary.mkdir()
        found = play(
            llm_scenes.__name__,
            "what_changes_in_the_environment",
            temporary,
            **of_stock,
        )
        changed.append(found["environment"])
    assert changed[0] == changed[1]


@more
@pytest.mark.parametrize(
    "scene", ["dropped", "in_a_thread", "an_exception_on_the_way_out", "sys_exit"]
)
def test_every_other_way_in_one_process(tmp_path: Path, scene: str):
    play(
        llm_scenes.__name__,
        scene,
        tmp_path,
        options=("-X", "dev"),
        environment=IN_PROCESS,
        code=CODES.get(scene, 0),
    )
