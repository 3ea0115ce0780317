"""Tests over a corpus: each row counts, and none hides another."""

import os

import pytest
from pytest_timeout import PYTEST_FAILURE_MESSAGE

from tests.support.corpus import corpus


def failing(test, **fixtures):
    """Return the text with which a test over a corpus fails."""
    with pytest.raises(AssertionError) as raised:
        test(**fixtures)
    return str(raised.value)


def test_every_row_that_fails_or_skips_or_returns_something_is_reported():
    @corpus("number", [1, 2, 3, 4, 5])
    def row(number):
        if number == 2:
            pytest.skip("not here")
        if number == 3:
            pytest.fail("not this one")
        if number == 4:
            return number == 99
        assert number == 1
        return None

    text = failing(row)
    assert "4 of 5 rows fail" in text
    assert "{'number': 5}" in text
    for found in ("Skipped: not here", "Failed: not this one", "may have meant to assert it"):
        assert found in text


def test_rows_after_a_row_without_end_are_not_tried_without_a_limit():
    tried = []

    @corpus("number", [1, 2])
    def row(number):
        tried.append(number)
        pytest.fail(PYTEST_FAILURE_MESSAGE % 600)

    assert "1 of 2 rows fail" in failing(row)
    assert tried == [1]


def test_what_would_check_nothing_or_see_what_other_rows_have_left_is_refused():
    def generator(number):
        yield number

    async def coroutine(number): ...

    def collecting(number, caplog): ...

    for test, problem in ((generator, "would not run"), (coroutine, "would not run"), (collecting, "left in caplog")):
        with pytest.raises(AssertionError, match=problem):
            corpus("number", [1])(test)
    with pytest.raises(AssertionError, match="without a row"):
        corpus("number", [])


def test_each_row_has_a_folder_and_patches_of_its_own(tmp_path, monkeypatch):
    folders = []

    @corpus("number", [1, 2])
    def row(number, tmp_path, monkeypatch):
        assert "NUMBER_OF_ROW" not in os.environ
        monkeypatch.setenv("NUMBER_OF_ROW", str(number))
        folders.append(tmp_path)

    row(tmp_path=tmp_path, monkeypatch=monkeypatch)
    assert len(set(folders)) == 2
