"""What grows from cycle to cycle is told, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cycles import Cycle, faults_of

SAME = Cycle(
    closing=0.2,
    resident=600 << 20,
    descriptors=9,
    threads=["MainThread"],
    children=[],
    memory=["sem.theirs"],
    files=["torchinductor"],
)


def test_what_stays_the_same_is_no_fault():
    assert faults_of([SAME] * 30) == []


def test_what_the_first_has_begun_is_no_fault():
    assert faults_of([replace(SAME, descriptors=6, threads=[]), *[SAME] * 29]) == []


def test_what_has_become_less_is_no_fault():
    less = replace(SAME, descriptors=5, memory=[], files=[], resident=1 << 20)
    assert faults_of([SAME, SAME, less]) == []


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"descriptors": 10}, "descriptors: 9 to 10"),
        ({"tasks": 1}, "tasks: 0 to 1"),
        ({"threads": ["MainThread", "MainThread"]}, "threads: MainThread"),
        ({"children": ["VLLM::EngineCore"]}, "children: VLLM::EngineCore"),
        ({"memory": ["psm_1", "sem.theirs"]}, "memory: psm_1"),
        ({"files": ["torchinductor", "vllm"]}, "files: vllm"),
    ],
)
def test_what_the_last_has_more_is_told(more, told):
    assert faults_of([SAME, SAME, replace(SAME, **more)]) == [told]


def test_one_that_closes_late_is_told():
    late = replace(SAME, closing=0.6)
    assert faults_of([SAME, late, SAME]) == ["one took 0.600 s to close"]


def test_memory_that_still_grows_is_told():
    growing = [replace(SAME, resident=int(6e8 * 1.02**at)) for at in range(10)]
    (told,) = faults_of(growing)
    assert told.startswith("memory grows by 2.")
    settled = [*growing, *[growing[-1]] * 6]
    assert faults_of(settled) == []
