from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ashutdown.core.budget import KILL_SECONDS, Budget
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Phase

WAITING = (Phase.END, Phase.HANDLER, Phase.CORE, Phase.RELEASE, Phase.AUDIT)
"""The phases with a share of the teardown, in the order."""

NOT_WAITING = (Phase.ANNOUNCE, Phase.ADMISSION)

SLACK = 1e-6
"""What floating point may lose."""


class Clock:
    """Time that only passes when it is told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def reserves(teardown: float) -> dict[Phase, float]:
    """What each phase gets at the least, seen from a budget with nothing spent.

    A phase that starts in time gets all but what is reserved behind it, so its own
    reserve is the difference between two neighbours.
    """
    budget = Budget.arm(0.0, teardown, Clock())
    free = [budget.allot(phase) for phase in WAITING]
    before = [0.0, *free[:-1]]
    return {
        phase: here - there
        for phase, here, there in zip(WAITING, free, before, strict=True)
    }


def test_the_reserves_add_up_to_the_teardown():
    found = reserves(10.0)
    assert sum(found.values()) == pytest.approx(10.0)
    assert all(seconds > 0 for seconds in found.values())
    assert found[Phase.CORE] == max(found.values())


@given(
    drain=st.floats(0, 1e4),
    teardown=st.floats(0.01, 1e4),
    drained=st.floats(0, 1),
    greed=st.lists(st.floats(0, 1), min_size=5, max_size=5),
)
def test_no_phase_eats_into_a_reserve_behind_it(drain, teardown, drained, greed):
    clock = Clock()
    budget = Budget.arm(drain, teardown, clock)
    least = reserves(teardown)
    clock.now += drained * budget.allot(Phase.DRAIN)
    for phase, part in zip(WAITING, greed, strict=True):
        allotted = budget.allot(phase)
        assert allotted >= least[phase] - SLACK * (1 + drain + teardown)
        clock.now += part * allotted
    assert clock.now <= budget.deadline + SLACK * (1 + drain + teardown)


@given(
    drain=st.one_of(st.floats(0, 1e4), st.just(math.inf)),
    teardown=st.floats(0.01, 1e4),
    late=st.floats(-10, 1e6),
    mode=st.sampled_from([None, Mode.ABORT, Mode.KILL]),
    phase=st.sampled_from(Phase),
)
def test_no_share_is_negative_or_more_than_is_left(drain, teardown, late, mode, phase):
    clock = Clock()
    budget = Budget.arm(drain, teardown, clock)
    clock.now += late
    if mode is not None:
        budget = budget.raised_to(mode)
    assert 0 <= budget.allot(phase) <= budget.remaining()
    assert not math.isnan(budget.allot(phase))


@pytest.mark.parametrize("phase", NOT_WAITING)
def test_a_phase_that_waits_for_nothing_gets_nothing(phase):
    assert Budget.arm(30.0, 10.0, Clock()).allot(phase) == 0


def test_the_clock_is_the_one_given():
    clock = Clock(5.0)
    budget = Budget.arm(30.0, 10.0, clock)
    assert (budget.armed_at, budget.deadline) == (5.0, 45.0)
    assert (budget.elapsed(), budget.remaining()) == (0.0, 40.0)
    clock.now = 12.0
    assert (budget.elapsed(), budget.remaining()) == (7.0, 33.0)
    clock.now = 100.0
    assert (budget.elapsed(), budget.remaining()) == (95.0, 0.0)


def test_without_a_clock_it_is_the_monotonic_one(monkeypatch):
    import time

    first = Budget.arm(1.0, 1.0)
    assert first.clock is time.monotonic


def test_no_drain():
    clock = Clock()
    budget = Budget.arm(0.0, 10.0, clock)
    assert budget.allot(Phase.DRAIN) == 0
    assert budget.remaining() == 10.0


def test_a_drain_gets_its_time_and_no_more():
    clock = Clock()
    budget = Budget.arm(30.0, 10.0, clock)
    assert budget.allot(Phase.DRAIN) == 30.0
    clock.now += 12.0
    assert budget.allot(Phase.DRAIN) == 18.0
    clock.now += 20.0
    assert budget.allot(Phase.DRAIN) == 0


def test_a_drain_without_limit_has_none_and_the_teardown_behind_it_has_its_own():
    clock = Clock()
    budget = Budget.arm(math.inf, 10.0, clock)
    clock.now += 1e6
    assert budget.allot(Phase.DRAIN) == math.inf
    assert budget.remaining() == math.inf
    after = budget.without_drain()
    assert after.remaining() == pytest.approx(10.0)
    assert after.allot(Phase.DRAIN) == 0
    assert after.allot(Phase.CORE) == pytest.approx(7.5)


@given(
    drain=st.one_of(st.floats(0, 1e4), st.just(math.inf)),
    teardown=st.floats(0.01, 1e4),
    elapsed=st.floats(0, 2e4),
)
def test_drain_time_that_was_not_needed_is_nobodys(drain, teardown, elapsed):
    clock = Clock(0.0)
    budget = Budget.arm(drain, teardown, clock)
    clock.now += elapsed
    after = budget.without_drain()
    assert after.remaining() <= budget.remaining()
    assert after.remaining() <= teardown + SLACK
    if elapsed <= drain:
        assert after.remaining() == pytest.approx(teardown)
    # Twice is once, and time that passes then is time of the teardown.
    clock.now += 1.0
    assert after.without_drain() == after
    assert after.remaining() <= max(0.0, teardown - 1.0) + SLACK * (1 + elapsed)


def test_a_raise_to_abort_ends_the_drain_and_leaves_the_teardown_whole():
    clock = Clock()
    budget = Budget.arm(30.0, 10.0, clock)
    clock.now += 4.0
    raised = budget.raised_to(Mode.ABORT)
    assert raised.allot(Phase.DRAIN) == 0
    assert raised.remaining() == pytest.approx(10.0)


def test_a_raise_to_abort_in_the_teardown_gives_no_time_back():
    clock = Clock()
    budget = Budget.arm(0.0, 10.0, clock)
    clock.now += 4.0
    assert budget.raised_to(Mode.ABORT).remaining() == pytest.approx(6.0)


@given(
    drain=st.one_of(st.floats(0, 1e4), st.just(math.inf)),
    teardown=st.floats(0.01, 1e4),
    elapsed=st.floats(0, 2e4),
)
def test_a_raise_to_kill_leaves_time_to_reap_and_never_adds_any(
    drain, teardown, elapsed
):
    clock = Clock(0.0)
    budget = Budget.arm(drain, teardown, clock)
    clock.now += elapsed
    raised = budget.raised_to(Mode.KILL)
    assert raised.remaining() <= budget.remaining() + SLACK
    assert raised.remaining() <= KILL_SECONDS + SLACK * (1 + elapsed)
    assert raised.allot(Phase.DRAIN) == 0
    if elapsed <= drain:
        assert raised.remaining() == pytest.approx(min(KILL_SECONDS, teardown))
    assert raised.elapsed() == budget.elapsed(), "the first trigger stays the first"


@pytest.mark.parametrize("elapsed", [0.0, 1.0, 5.0, 100.0])
def test_after_a_raise_to_kill_no_phase_eats_into_a_reserve_either(elapsed):
    clock = Clock(0.0)
    budget = Budget.arm(100.0, 10.0, clock)
    clock.now += elapsed
    raised = budget.raised_to(Mode.KILL)
    least = reserves(raised.remaining())
    for phase in WAITING:
        allotted = raised.allot(phase)
        assert allotted >= least[phase] - SLACK
        clock.now += allotted  # each takes all that it may
