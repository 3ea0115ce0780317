"""Tests over a corpus: each row counts, and none hides another."""

from __future__ import annotations

import os
from typing import Any

import pytest
from pytest_timeout import PYTEST_FAILURE_MESSAGE

from tests.support.corpus import corpus


def failing(test: Any, **fixtures: Any) -> str:
    """Return the text with which a test over a corpus fails."""
    with pytest.raises(AssertionError) as raised:
        test(**fixtures)
    return str(raised.value)


def test_every_failing_row_is_reported() -> None:
    @corpus("number", [1, 2, 3, 4])
    def is_even(number: int) -> None:
        assert number % 2 == 0

    text = failing(is_even)
    assert "2 of 4 rows fail" in text
    assert "{'number': 1}" in text
    assert "{'number': 3}" in text


def test_a_row_that_skips_hides_no_failure_and_fails_itself() -> None:
    @corpus("number", [1, 2])
    def row(number: int) -> None:
        if number == 2:
            pytest.skip("not here")
        raise ValueError(number)

    text = failing(row)
    assert "ValueError: 1" in text
    assert "Skipped: not here" in text


def test_a_row_may_call_fail() -> None:
    @corpus("number", [1, 2])
    def row(number: int) -> None:
        pytest.fail(f"no {number}")

    assert "2 of 2 rows fail" in failing(row)


def test_rows_after_a_row_without_end_are_not_tried_without_a_limit() -> None:
    tried = []

    @corpus("number", [1, 2])
    def row(number: int) -> None:
        tried.append(number)
        pytest.fail(PYTEST_FAILURE_MESSAGE % 600)

    assert "1 of 2 rows fail" in failing(row)
    assert tried == [1]


def test_what_would_check_nothing_is_refused() -> None:
    def generator(number: int) -> Any:
        yield number

    async def coroutine(number: int) -> None: ...

    for test in (generator, coroutine):
        with pytest.raises(AssertionError, match="it would not run"):
            corpus("number", [1])(test)
    with pytest.raises(AssertionError, match="without a row"):
        corpus("number", [])


def test_a_comparison_without_assert_is_a_failure() -> None:
    @corpus("number", [1])
    def row(number: int) -> Any:
        return number == 99

    assert "may have meant to assert it" in failing(row)


def test_rows_do_not_see_what_others_have_logged_or_printed() -> None:
    def row(number: int, caplog: Any) -> None: ...

    with pytest.raises(AssertionError, match="left in caplog"):
        corpus("number", [1])(row)


def test_each_row_has_a_folder_and_patches_of_its_own(tmp_path: Any, monkeypatch: Any) -> None:
    folders = []

    @corpus("number", [1, 2])
    def row(number: int, tmp_path: Any, monkeypatch: Any) -> None:
        assert "NUMBER_OF_ROW" not in os.environ
        monkeypatch.setenv("NUMBER_OF_ROW", str(number))
        folders.append(tmp_path)

    row(tmp_path=tmp_path, monkeypatch=monkeypatch)
    assert len(set(folders)) == 2
