"""What is promised of a stop's times, held against times that are known."""

from __future__ import annotations

from benchmarks.trial import ABORT, DRAIN, FLOOR, OURS, STOCK, Case, Trial
from benchmarks.verdicts import cases_of, times_of, verdicts

PLAIN, OTHER = Case("one", ABORT, 8), Case("tp2", ABORT, 64)
DRAINED = Case("one", DRAIN, 8)


def timed(case: Case, arm: str, *seconds: float, gone: float = 0.0) -> list[Trial]:
    return [Trial(case, arm, 1, 0, one, gone or one) for one in seconds]


def judged(trials: list[Trial]) -> dict[str, tuple[bool | None, str]]:
    return {one.promise: (one.kept, one.found) for one in verdicts(trials)}


def hung(case: Case) -> Trial:
    return Trial(case, STOCK, 1, None, 15.0)


def test_without_measurements_nothing_is_judged():
    assert {one.kept for one in verdicts([])} == {None}
    assert all(str(one).startswith("not measured: ") for one in verdicts([]))


def test_ours_is_held_against_stocks_that_do_not_hang():
    promise = "abort, 8 streams, one server: ours' median is not above stock's"
    stock = [*timed(PLAIN, STOCK, 0.3, 0.4, 0.5), hung(PLAIN)]
    kept, found = judged([*stock, *timed(PLAIN, OURS, 0.4, 0.4, 0.9)])[promise]
    assert kept
    assert found == "0.400 s, stock's 0.400 s where it did not hang, as 1 of 4 did"
    assert judged([*stock, *timed(PLAIN, OURS, 0.41)])[promise][0] is False
    assert judged([hung(PLAIN), *timed(PLAIN, OURS, 9.0)])[promise][0] is True


def test_the_worst_of_each_case_is_held_against_its_own_median():
    promise = "every abort: ours' worst is at most 2 times its median"
    good, bad = timed(PLAIN, OURS, 0.4, 0.4, 0.8), timed(OTHER, OURS, 1.0, 1.0, 2.01)
    assert judged(good)[promise][0] is True
    assert judged([*good, *timed(OTHER, OURS, 9.0)])[promise][0] is True, (
        "one is no row"
    )
    kept, found = judged([*good, *bad])[promise]
    assert kept is False
    assert found.startswith(f"{OTHER}: median 1.000 s, worst 2.010 s")


def test_the_floor_is_of_the_last_process_and_of_any_mode():
    promise = "abort, 8 streams, one server: ours' median is within 0.25 s of the floor"
    floor = timed(Case("one", DRAIN, 8), FLOOR, 0.1)
    kept, _ = judged([*floor, *timed(PLAIN, OURS, 0.3, gone=0.34)])[promise]
    assert kept
    kept, _ = judged([*floor, *timed(PLAIN, OURS, 0.3, gone=0.36)])[promise]
    assert kept is False
    other = timed(Case("one", DRAIN, 64), FLOOR, 0.1)
    assert judged([*other, *timed(PLAIN, OURS, 0.3)])[promise][0] is None


def test_a_drain_is_over_soon_after_its_last_byte():
    promise = "every drain: ours' median exit is at most 0.3 s after the last byte"

    def after(seconds: float) -> list[Trial]:
        return [Trial(DRAINED, OURS, 1, 0, 3.0, 3.0, seconds)]

    assert judged([*after(0.2), *after(0.29), *after(0.9)])[promise][0] is True
    assert judged(after(0.31))[promise][0] is False
    idle = Case("one", DRAIN, 0)
    assert judged([Trial(idle, OURS, 1, 0, 0.9)])[promise][0] is None


def test_what_did_not_end_by_itself_has_no_time():
    unborn = Trial(PLAIN, OURS, 1, failed="the server did not start")
    assert times_of([hung(PLAIN), unborn], PLAIN, STOCK) == []
    assert times_of([unborn], PLAIN, OURS) == []
    assert cases_of([hung(PLAIN), unborn]) == [PLAIN]
