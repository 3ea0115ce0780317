"""The files that a task of Spark writes: rows of a day are in its folder, and only those."""

import random
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from celery_rmq_delay.analytics.days import Days
from celery_rmq_delay.analytics.storage import day_files
from tests.support.corpus import corpus

FIRST = date(2026, 3, 1)
DAYS = Days(FIRST, FIRST + timedelta(days=3))


def batches(seed):
    """Batches with rows of six days, the last two of which are not written."""
    numbers = random.Random(seed)
    for size in (0, 1, 50, 200):
        days = [FIRST + timedelta(days=numbers.randrange(6)) for _ in range(size)]
        names = [str(each) for each in days]
        yield pa.RecordBatch.from_arrays(
            [pa.array(names, pa.string()), pa.array(days, pa.date32()), pa.array(range(size), pa.int64())],
            names=["name", "day", "number"],
        )


def unchanged(rows, count):
    return rows


def counting(rows, count):
    """Count the rows of each batch."""
    for each in rows:
        count(pa.table({"number": [each.num_rows]}))
        yield each


def write(folder, seed):
    run(folder, batches(seed))


def run(folder, rows, make=unchanged, **counted):
    """Run a task of Spark, and return its files."""
    write = day_files._writer(day_files._Folder(folder, DAYS, ["name"], **counted), make)
    return {name for each in write(rows) for name in each["file"].to_pylist()}


def rows_in(folder):
    """Return the rows of all files, with the names of their folders."""
    return [
        (of_day.name, row["name"], row["number"])
        for of_day in folder.iterdir()
        for file in of_day.iterdir()
        for row in parquet.ParquetFile(file).read().to_pylist()
    ]


def expected(seed):
    rows = [row for batch in batches(seed) for row in batch.to_pylist()]
    return sorted((f"day={row['day']}", row["name"], row["number"]) for row in rows if row["day"] in DAYS)


@corpus("most_bytes", [1, 2_000, 10**9])
def test_every_row_is_in_the_file_of_its_day(tmp_path, monkeypatch, most_bytes):
    monkeypatch.setattr(day_files, "_MOST_BYTES", most_bytes)
    write(tmp_path, 3)
    assert sorted(rows_in(tmp_path)) == expected(3)
    assert all(len(list(folder.iterdir())) == 1 for folder in tmp_path.iterdir())


def test_more_days_than_files_may_be_open_have_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(day_files, "_MOST_OPEN", 2)
    monkeypatch.setattr(day_files, "_MOST_BYTES", 1)
    write(tmp_path, 3)
    assert len(list(tmp_path.glob("*/*"))) > len(DAYS)
    assert sorted(rows_in(tmp_path)) == expected(3)


def test_rows_of_days_that_python_has_no_dates_for_are_left_out(tmp_path):
    numbers = pa.array([-800_000, 20_000], pa.int32())
    batch = pa.RecordBatch.from_arrays([pa.array(["a", "b"]), numbers.cast(pa.date32())], names=["name", "day"])
    run(tmp_path, iter([batch]))
    assert list(tmp_path.iterdir()) == []


def test_a_task_returns_its_files_and_those_of_failed_tasks_are_removed(tmp_path):
    with pytest.raises(OSError, match="the disk is full"):
        run(tmp_path, batches(2), failing)
    (tmp_path / "day=2026-02-01").mkdir()
    (tmp_path / "day=2026-02-01" / "part-of-a-killed-worker.parquet").write_text("")
    day_files._remove_others(tmp_path, run(tmp_path, batches(3)))
    assert sorted(rows_in(tmp_path)) == expected(3)
    assert not (tmp_path / "day=2026-02-01").exists()


def failing(rows, count):
    yield from rows
    raise OSError("the disk is full")


def test_counts_are_in_a_file_of_their_own_with_all_their_columns(tmp_path):
    days, counts = tmp_path / "days", tmp_path / "counts"
    for each in (days, counts):
        each.mkdir()
    columns = pa.schema([("of", pa.string()), ("number", pa.int64())])
    files = run(days, batches(3), counting, counts=counts, counted=columns)
    (file,) = (name for name in files if Path(name).parent == counts)
    assert parquet.ParquetFile(file).read().to_pylist() == [{"of": None, "number": size} for size in (0, 1, 50, 200)]
    assert sorted(rows_in(days)) == expected(3)


def test_only_columns_whose_values_repeat_have_a_dictionary(tmp_path):
    write(tmp_path, 3)
    (file, *_) = tmp_path.glob("*/*.parquet")
    columns = parquet.ParquetFile(file).metadata.row_group(0)
    assert [columns.column(at).has_dictionary_page for at in range(2)] == [True, False]


def test_a_task_that_ends_late_does_not_create_the_removed_folder_again(tmp_path):
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "removed", 3)
    assert not (tmp_path / "removed").exists()
