"""Rates, shares and sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.cli.capacity import format_number, format_size, parse_rate, parse_shares, parse_size
from celery_rmq_delay.exceptions import SettingsError
from tests.support.corpus import corpus


@corpus(
    "text, rate",
    [("5000/s", 5000), ("300/m", 5), ("7200/h", 2), ("864e2/d", 1), (" 0.5 / s ", 0.5), ("12", 12), (".5/s", 0.5)],
)
def test_a_rate_is_messages_a_second(text, rate):
    assert parse_rate(text, "--rate") == pytest.approx(rate)


@corpus("text, size", [("500B", 500), ("2KiB", 2048), ("1MB", 10**6), ("8GiB", 2**33), ("1.5k", 1500), ("77", 77)])
def test_a_size_is_bytes(text, size):
    assert parse_size(text, "--size") == size


def test_shares_are_of_all_attempts_or_of_each():
    assert parse_shares("2%", "--failure-rate") == (0.02,)
    assert parse_shares("0.02, 50%,1", "--failure-rate") == (0.02, 0.5, 1)


@corpus("text", ["", "fast", "-1/s", "5/y", "1e999/s", "nan"])
def test_an_invalid_rate_is_refused_with_an_example(text):
    with pytest.raises(SettingsError, match=r"--rate: found .*(5000/s|too much)"):
        parse_rate(text, "--rate")


@corpus("text", ["", "2", "101%", "-0.1", "a,b", "0.1,"])
def test_an_invalid_share_is_refused_with_an_example(text):
    with pytest.raises(SettingsError, match="0 to 1"):
        parse_shares(text, "--failure-rate")


@corpus("text", ["", "2 bits", "-5B", "1Ki iB"])
def test_an_invalid_size_is_refused_with_an_example(text):
    with pytest.raises(SettingsError, match="8GiB"):
        parse_size(text, "--size")


@given(st.integers(0, 2**60))
def test_a_printed_size_is_read_back_as_nearly_the_same(size):
    text = format_size(size).replace(" ", "").replace(",", "")
    if "PiB" not in text:
        assert parse_size(text, "--size") == pytest.approx(size, rel=0.006)


@corpus(
    "value, text",
    [
        (0, "0"),
        (12345.4, "12,345"),
        (99.96, "100"),
        (5.0, "5"),
        (1.234, "1.23"),
        (0.0123, "0.0123"),
        (1.6e-5, "1.6e-05"),
    ],
)
def test_a_number_is_printed_with_three_digits(value, text):
    assert format_number(value) == text
