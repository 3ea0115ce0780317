"""Rows of tests: of one test that checks every row and reports all rows that fail, and slow ones."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """Return a row of a parametrized test that `make test-all` runs, and `make test` leaves out."""
    return pytest.param(*values, marks=pytest.mark.slow)


#: Fixtures that collect what a test does.
_COLLECTING = {"caplog", "capfd", "capfdbinary", "capsys", "capsysbinary", "recwarn"}
_OUTCOMES = (pytest.fail.Exception, pytest.skip.Exception)
#: In the message of pytest-timeout, which sets no other timer for the same test.
_TIMED_OUT = "from pytest-timeout"


def corpus(names: str, rows: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for each row in turn: ``@corpus("text, length", [("", 0), ("a", 1)])``.

    A behaviour is one test, however many examples it has. Unlike with ``parametrize`` the rows share the fixtures, but
    for ``monkeypatch`` and ``tmp_path``, of which each row has its own. A row that skips fails, as it checks nothing.
    """
    parts = [name.strip() for name in names.split(",")]
    table = [dict(zip(parts, row if len(parts) > 1 else (row,), strict=True)) for row in rows]
    assert table, "a corpus without a row checks nothing"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        assert not (inspect.isgeneratorfunction(test) or inspect.iscoroutinefunction(test)), "it would not run"
        collecting = _COLLECTING & signature.parameters.keys()
        assert not collecting, f"a row would see what an earlier one has left in {', '.join(collecting)}"

        @functools.wraps(test)
        def check_all(**fixtures: Any) -> None:
            failures = []
            for number, row in enumerate(table):
                try:
                    _check(test, number, row, fixtures)
                except (Exception, *_OUTCOMES) as error:  # noqa: BLE001, PERF203 - reported with the others
                    failures.append((row, error))
                    if _TIMED_OUT in str(error):  # the next row would have no limit
                        break
            if failures:
                lines = [f"{row}: {type(error).__name__}: {error}" for row, error in failures]
                found = f"{len(failures)} of {len(table)} rows fail; the traceback above is the first one's."
                raise AssertionError("\n\n".join([found, *lines])) from failures[0][1]

        left = [each for each in signature.parameters.values() if each.name not in parts]
        check_all.__signature__ = signature.replace(parameters=left)
        return check_all

    return decorate


def _check(test: Callable[..., None], number: int, row: dict[str, Any], fixtures: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as own:
        if "monkeypatch" in fixtures:
            fixtures = {**fixtures, "monkeypatch": own}
        if "tmp_path" in fixtures:
            folder = fixtures["tmp_path"] / f"row-{number}"
            folder.mkdir()
            fixtures = {**fixtures, "tmp_path": folder}
        assert test(**fixtures, **row) is None, "a test that returns something may have meant to assert it"
