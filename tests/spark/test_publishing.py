"""Replacing days: if any step fails, the output has all old days or gets all new ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from celery_rmq_delay.analytics.days import Days
from celery_rmq_delay.analytics.storage.files import Storage
from celery_rmq_delay.analytics.storage.writers import STAGING, Replacement, recover
from celery_rmq_delay.exceptions import AnalyticsError

DAYS = Days(date(2026, 1, 1), date(2026, 1, 3))
OLD = {f"{table}/day={day}": ["old"] for table in ("one", "two") for day in DAYS}
#: The second day of a table ends empty; the first one changes in both tables.
NEW = {f"{table}/day=2026-01-0{day}": ["new", "new too"] for table, day in (("one", 1), ("one", 3), ("two", 2))}


class Torn(Exception):
    """The error of a storage in the middle of its work."""


@pytest.fixture
def half_done(spark: SparkSession, tmp_path: Path) -> Callable[[str], tuple[Path, Replacement]]:
    """Return an output with the old days, and a run that has written the new ones and not decided yet."""

    def make(name: str) -> tuple[Path, Replacement]:
        output = tmp_path / name
        _fill(output, OLD)
        replacement = Replacement(spark, str(output), "run")
        for table in ("one", "two"):
            found = {place: texts for place, texts in NEW.items() if place.startswith(table)}
            _fill(output / STAGING / "run" / "new", found)
            replacement._days[table] = DAYS
            replacement._written[table] = replacement._staged(table)
        return output, replacement

    return make


def _fill(folder: Path, contents: dict[str, list[str]]) -> None:
    for place, texts in contents.items():
        (folder / place).mkdir(parents=True)
        for text in texts:
            (folder / place / f"part-{text.replace(' ', '-')}.parquet").write_text(text)


def contents(output: Path) -> dict[str, list[str]]:
    found = {
        f"{day.parent.name}/{day.name}": sorted(file.read_text() for file in day.glob("*.parquet"))
        for day in output.glob("[!_]*/day=*")
    }
    return {place: texts for place, texts in found.items() if texts}


class Steps:
    """A storage whose n-th step fails, done or not; without atomic moves of folders every file is a step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails_at: int, *, is_done: bool, moves_folders: bool) -> None:
        self.fails_at, self.is_done, self.count = fails_at, is_done, 0
        rename, delete = Storage.rename, Storage.delete

        def renamed(storage: Storage, source: str, target: str) -> None:
            if moves_folders or not Path(_local(source)).is_dir():
                self.step(lambda: rename(storage, source, target))
                return
            files = sorted(Path(_local(source)).iterdir())
            for file in files:
                self.step(lambda file=file: _copy(file, Path(_local(target))))  # type: ignore[misc]
            for file in files:
                self.step(file.unlink)
            self.step(Path(_local(source)).rmdir)

        monkeypatch.setattr(Storage, "rename", renamed)
        monkeypatch.setattr(Storage, "delete", lambda storage, path: self.step(lambda: delete(storage, path)))

    def step(self, do: Callable[[], None]) -> None:
        self.count += 1
        if self.count == self.fails_at and not self.is_done:
            raise Torn
        do()
        if self.count == self.fails_at:
            raise Torn


def _local(path: str) -> str:
    return path.removeprefix("file:")


def _copy(file: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, folder)


@pytest.mark.parametrize(
    ("is_done", "moves_folders"),
    [
        pytest.param(False, True, id="undone-renames"),
        pytest.param(True, False, marks=pytest.mark.slow, id="done-copies and deletes"),
        pytest.param(True, True, marks=pytest.mark.slow, id="done-renames"),
        pytest.param(False, False, marks=pytest.mark.slow, id="undone-copies and deletes"),
    ],
)
def test_after_a_failure_in_any_step_all_days_are_old_or_become_new(
    spark: SparkSession,
    half_done: Callable[[str], tuple[Path, Replacement]],
    monkeypatch: pytest.MonkeyPatch,
    is_done: bool,
    moves_folders: bool,
) -> None:
    """As in a run: a failure before the decision discards the days, and a later one leaves them to the next run."""
    outcomes = []
    for number in range(1, 100):
        output, replacement = half_done(str(number))
        with monkeypatch.context() as patch:
            steps = Steps(patch, number, is_done=is_done, moves_folders=moves_folders)
            try:
                try:
                    replacement.decide()
                except Torn:
                    replacement.discard()
                    raise
                replacement.complete()
            except Torn:
                pass
        recovered = recover(spark, str(output))
        outcomes.append(contents(output))
        assert outcomes[-1] in (OLD, NEW)
        assert not list((output / STAGING).iterdir())
        assert recover(spark, str(output)) == []
        if steps.count < number:
            break
        assert len(recovered) <= 1
    assert steps.count < number, "not all steps were tried"
    assert number > (8 if moves_folders else 20)
    assert outcomes[-1] == NEW
    first_new = outcomes.index(NEW)
    assert first_new <= 1
    assert all(each == NEW for each in outcomes[first_new:]), "decided once, it stays so"


def test_a_completion_that_fails_repeatedly_still_ends(
    spark: SparkSession, half_done: Callable[[str], tuple[Path, Replacement]], monkeypatch: pytest.MonkeyPatch
) -> None:
    output, replacement = half_done("output")
    replacement.decide()
    for _ in range(50):
        with monkeypatch.context() as patch:
            steps = Steps(patch, 2, is_done=False, moves_folders=False)
            try:
                recover(spark, str(output))
            except Torn:
                continue
            break
    assert steps.count <= 1
    assert contents(output) == NEW


def test_a_run_whose_files_were_removed_is_not_published(
    half_done: Callable[[str], tuple[Path, Replacement]],
) -> None:
    output, replacement = half_done("output")
    shutil.rmtree(output / STAGING)
    with pytest.raises(AnalyticsError, match="files of the table one disappeared before it was published"):
        replacement.decide()
    replacement.discard()
    assert contents(output) == OLD


def test_a_run_that_lost_its_lock_is_not_published(half_done: Callable[[str], tuple[Path, Replacement]]) -> None:
    output, replacement = half_done("output")

    def check() -> None:
        raise AnalyticsError("another run took over")

    with pytest.raises(AnalyticsError, match="took over"):
        replacement.decide(check)
    replacement.discard()
    assert contents(output) == OLD
    assert not list((output / STAGING).iterdir())


def test_an_invalid_journal_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / STAGING / "run").mkdir(parents=True)
    (tmp_path / STAGING / "run" / "journal.json").write_text('[{"day": 1}]')
    with pytest.raises(AnalyticsError, match=r"journal\.json: is not a journal of a run"):
        recover(spark, str(tmp_path))
