"""Delays as users write them."""

import math
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_rmq_delay.durations import MAX_TTL_MS, format_ms, parse_ms
from celery_rmq_delay.exceptions import SettingsError
from tests.support.corpus import corpus

delays = st.integers(1, MAX_TTL_MS)


@given(delays)
@example(1)
@example(999)
@example(59_999)
@example(31 * 24 * 3_600_000)
@example(MAX_TTL_MS)
def test_a_formatted_delay_is_read_back(ms):
    assert parse_ms(format_ms(ms), "tiers") == ms


@given(delays, delays)
def test_different_delays_look_different(first, second):
    assert (format_ms(first) == format_ms(second)) == (first == second)


@given(delays)
def test_seconds_and_timedelta_mean_the_same(ms):
    assert parse_ms(timedelta(milliseconds=ms), "tiers") == ms
    assert parse_ms(ms / 1000, "tiers") == ms
    assert parse_ms(Fraction(ms, 1000), "tiers") == ms


PARSED = {
    "10s": 10_000, " 1m ": 60_000, "1h30m": 5_400_000, "1.5s": 1500, "250ms": 250, "2d": 172_800_000, "1w": 604_800_000,
    "+1s": 1000,
}  # fmt: skip


@corpus("text, ms", PARSED.items())
def test_documented_delays_are_parsed(text, ms):
    assert parse_ms(text, "tiers") == ms


WRITTEN = {
    400: "400ms", 1000: "1s", 1500: "1.5s", 90_000: "1m30s", 86_400_000: "1d", 3_600_400: "1h0.4s",
    31 * 86_400_000: "31d",
}  # fmt: skip


@corpus("ms, text", WRITTEN.items())
def test_delays_are_written_as_people_write_them(ms, text):
    assert format_ms(ms) == text


WRONG = [
    *("", " ", "10", "s", "1x", "1 s", "10s,1m", "10s 1m", "1h, then 5m", "1.2.3s", ".s", "+-1s", "1e3s", "1s!", "nan"),
    *("-1s", "0", "0s", "0.1ms", "11y", "9" * 400 + "s", "\ud800"),
    *(0, -1, -0.5, 0.0004, math.nan, math.inf, -math.inf, 10**400, -(10**400), MAX_TTL_MS / 1000 + 1, 1e300),
    *(timedelta(0), timedelta(seconds=-1), timedelta.max),
    *(None, True, False, b"1s", [], {}, object(), 1j, Decimal(1)),
]


@corpus("value", WRONG)
def test_an_invalid_delay_is_one_error_with_setting_value_and_fix(value):
    with pytest.raises(SettingsError, match=r"rmq_delay\.tiers\[1\]: found ") as caught:
        parse_ms(value, "rmq_delay.tiers[1]")
    assert caught.value.setting == "rmq_delay.tiers[1]"
    assert caught.value.found is value
    assert repr(value) in str(caught.value)
    assert caught.value.hint.endswith((".", "."))


@given(st.one_of(st.text(), st.floats(), st.integers(), st.timedeltas(), st.none(), st.binary(), st.decimals()))
def test_anything_is_a_delay_within_the_limits_or_a_settings_error(value):
    try:
        ms = parse_ms(value, "tiers")
    except SettingsError:
        return
    assert type(ms) is int
    assert 1 <= ms <= MAX_TTL_MS
