from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ashutdown.core.mode import Mode, parse_seconds
from vllm_ashutdown.errors import AShutdownError, InvalidSettingError


def test_a_stop_knows_what_is_stronger():
    assert Mode.DRAIN < Mode.ABORT < Mode.KILL
    assert list(Mode) == sorted(Mode)


@pytest.mark.parametrize("mode", Mode)
def test_a_mode_is_parsed_from_itself_and_from_its_name(mode):
    assert Mode.parse(mode) is mode
    assert Mode.parse(str(mode)) is mode
    assert Mode.parse(f" {str(mode).upper()}\n") is mode


@pytest.mark.parametrize("value", ["", "stop", "drain,abort", 1, 2.0, None, b"drain"])
def test_what_names_no_mode_is_refused_with_its_value_and_the_choice(value):
    with pytest.raises(InvalidSettingError) as caught:
        Mode.parse(value)
    assert caught.value.name == "mode"
    assert caught.value.value is value
    assert repr(value) in str(caught.value)
    for mode in Mode:
        assert str(mode) in str(caught.value)


def test_an_invalid_setting_is_a_value_error_and_one_of_ours():
    assert issubclass(InvalidSettingError, ValueError)
    assert issubclass(InvalidSettingError, AShutdownError)


@pytest.mark.parametrize(
    ("seconds", "mode"),
    [(0, Mode.ABORT), (0.001, Mode.DRAIN), (30, Mode.DRAIN), (math.inf, Mode.DRAIN)],
)
def test_the_drain_time_decides_the_mode(seconds, mode):
    assert Mode.for_drain(seconds) is mode


@given(st.one_of(st.integers(0, 10**9), st.floats(0, math.inf), st.fractions(0, 99)))
def test_every_span_from_zero_to_infinity_is_one(value):
    seconds = parse_seconds(value)
    assert type(seconds) is float
    assert seconds == float(value)


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.001,
        -math.inf,
        math.nan,
        Fraction(-1, 3),
        Decimal(5),
        True,
        False,
        "5",
        None,
        [5],
        5j,
        10**400,
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_span_is_refused_with_its_value_and_the_range(value):
    with pytest.raises(InvalidSettingError) as caught:
        parse_seconds(value, "shutdown_timeout")
    assert caught.value.name == "shutdown_timeout"
    assert caught.value.value is value
    assert "0 or more" in str(caught.value)
