from __future__ import annotations

from vllm_ashutdown.audit.stages import STAGES, Stages

LOGGED, WORDS = zip(*STAGES, strict=True)


def told(*lines: str) -> list[str]:
    heard: list[str] = []
    stages = Stages(heard.append)
    for line in lines:
        stages.see(f"INFO {line} ...")
    return heard


def test_each_is_told_of_as_it_begins():
    assert told(*LOGGED[1:]) == [*WORDS]


def test_one_that_is_over_does_not_come_back():
    later, earlier = LOGGED[4], LOGGED[2]
    assert told(later, earlier, later) == [WORDS[0], WORDS[4]]


def test_other_lines_say_nothing():
    assert told("Uvicorn running", "") == [WORDS[0]]
