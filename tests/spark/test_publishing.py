"""Publishing a run: readers see all of the old days or all of the new ones, whatever fails, and old files go away."""

import json
import shutil
import threading
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DateType, StringType, StructField, StructType

from celery_rmq_delay.analytics.days import Days
from celery_rmq_delay.analytics.storage.files import LocalStorage, Storage, open_storage
from celery_rmq_delay.analytics.storage.locking import LOCK, locked
from celery_rmq_delay.analytics.storage.writers import Replacement, current_run, remove_unused, shown_tables
from celery_rmq_delay.exceptions import AnalyticsError, RunLostError
from celery_rmq_delay.history.output import CURRENT, RUNS, Current, manifest_of, open_tables, table_files
from tests.support.spark.history_files import rows_of

FIRST = date(2026, 1, 1)
NOW = datetime(2026, 2, 1, tzinfo=timezone.utc)
KEEP = timedelta(days=1)
UNFINISHED = "20260201T031700Z-0a1b2c3d"
COLUMNS = StructType([StructField("text", StringType()), StructField("day", DateType())])


class Torn(Exception):
    """The error of a storage in the middle of its work."""


def days(first, last):
    return Days(FIRST + timedelta(days=first), FIRST + timedelta(days=last))


@pytest.fixture
def write(spark, tmp_path):
    """Write days of the tables ``one`` and ``two``, each with a row, in a run that is not published yet."""

    def write(run, first, last):
        storage = open_storage(spark, str(tmp_path))
        replacement = Replacement(spark, str(tmp_path), run, shown_tables(storage))
        for table in ("one", "two"):
            rows = spark.createDataFrame([(run, day) for day in days(first, last)], COLUMNS)
            replacement.write(rows, table, days(first, last))
        return replacement

    return write


def contents(output):
    """Return the run that wrote each day, by table."""
    return {table: [row["text"] for row in rows_of(output, table)] for table in ("one", "two")}


def test_a_run_replaces_its_days_and_keeps_the_others(write, tmp_path):
    write("a", 0, 2).publish("{}", NOW)
    assert contents(tmp_path) == {"one": ["a"] * 3, "two": ["a"] * 3}
    write("b", 1, 1).publish("{}", NOW)
    assert contents(tmp_path) == {"one": ["a", "b", "a"], "two": ["a", "b", "a"]}


def test_a_day_without_rows_becomes_empty(spark, write, tmp_path):
    write("a", 0, 2).publish("{}", NOW)
    late = write("b", 0, 0)
    late.write(spark.createDataFrame([], COLUMNS), "one", days(0, 1))
    late.publish("{}", NOW)
    assert contents(tmp_path) == {"one": ["a"], "two": ["b", "a", "a"]}


def test_the_days_that_a_run_shows_are_read_with_their_day(spark, write, tmp_path):
    write("a", 0, 2).publish("{}", NOW)
    write("b", 1, 1).publish("{}", NOW)
    found = write("c", 5, 5).standing("one", StructType([COLUMNS["text"]]), days(1, 9))
    rows = found.where(F.col("day") <= FIRST + timedelta(days=9)).orderBy("day").collect()
    assert [tuple(row) for row in rows] == [("b", FIRST + timedelta(days=1)), ("a", FIRST + timedelta(days=2))]


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
def test_after_an_error_in_any_write_or_removal_the_output_is_old_or_new_as_a_whole(
    write, tmp_path, monkeypatch, is_done
):
    write("a", 0, 2).publish("{}", NOW)
    old, new = {"one": ["a"] * 3, "two": ["a"] * 3}, {"one": ["a", "b", "a"], "two": ["a", "b", "a"]}
    outcomes = []
    for number in range(1, 20):
        replacement, steps = write("b", 1, 1), [0]
        with monkeypatch.context() as patch:
            for name in ("write", "delete"):
                patch.setattr(LocalStorage, name, failing(getattr(LocalStorage, name), steps, number, is_done=is_done))
            try:
                replacement.publish("{}", NOW)
            except Torn:
                replacement.discard()
        outcomes.append(contents(tmp_path))
        assert (tmp_path / RUNS / "b").exists() is (outcomes[-1] == new)
        if outcomes[-1] == new:
            break
        assert outcomes[-1] == old
    assert outcomes[-1] == new
    assert len(outcomes) == 4 + (not is_done), "the temporary rows, the report, the manifest, the current run"


def failing(call, steps, at, *, is_done):
    """Return a method of a storage that fails in one of its steps, which is done or not."""

    def step(*args, **more):
        steps[0] += 1
        if steps[0] == at and not is_done:
            raise Torn
        found = call(*args, **more)
        if steps[0] == at:
            raise Torn
        return found

    return step


def test_a_run_whose_files_were_removed_is_not_published(write, tmp_path):
    write("a", 0, 2).publish("{}", NOW)
    replacement = write("b", 0, 0)
    next((tmp_path / RUNS / "b" / "one").glob("*/*.parquet")).unlink()
    with pytest.raises(AnalyticsError, match="files of the table one disappeared before it was published"):
        replacement.publish("{}", NOW)
    replacement.discard()
    assert contents(tmp_path) == {"one": ["a"] * 3, "two": ["a"] * 3}


def test_a_run_that_lost_its_lock_is_not_published(write, tmp_path):
    write("a", 0, 2).publish("{}", NOW)
    replacement = write("b", 0, 0)

    @contextmanager
    def held():
        raise AnalyticsError("another run took over")
        yield

    with pytest.raises(AnalyticsError, match="took over"):
        replacement.publish("{}", NOW, held)
    replacement.discard()
    assert contents(tmp_path) == {"one": ["a"] * 3, "two": ["a"] * 3}
    assert [path.name for path in (tmp_path / RUNS).iterdir()] == ["a"]


def test_a_run_that_was_suspended_while_it_removes_files_changes_nothing_after_a_take_over(
    spark, write, tmp_path, monkeypatch
):
    for run in ("a", "b"):
        write(run, 0, 1).publish("{}", NOW)
    later, entries = write("c", 0, 0), LocalStorage.entries
    write(UNFINISHED, 0, 0)

    def overtaken(storage, path):
        if path == storage.url:  # the pointer was read
            (tmp_path / LOCK).write_text(json.dumps({"run": "c"}))
            with monkeypatch.context() as patch:
                patch.setattr(LocalStorage, "entries", entries)
                later.publish("{}", NOW)
        return entries(storage, path)

    with locked(spark, str(tmp_path), "suspended", beat=1000) as lock, monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "entries", overtaken)
        with pytest.raises(RunLostError, match="the run c has taken over the lock of this one"):
            remove_unused(lock.storage, KEEP, NOW + 3 * KEEP, lock.held)
    assert {path.name for path in (tmp_path / RUNS).iterdir()} == {"a", "b", "c", UNFINISHED}
    assert contents(tmp_path)["one"] == ["c", "b"]


def test_of_two_runs_that_began_with_the_same_tables_one_is_published(write, tmp_path):
    write("a", 0, 2).publish("{}", NOW)
    slow, fast = write("b", 0, 0), write("c", 1, 1)
    fast.publish("{}", NOW)
    with pytest.raises(AnalyticsError, match=r"the run c was published while this one computed. Run again"):
        slow.publish("{}", NOW)
    assert contents(tmp_path)["one"] == ["a", "c", "a"]


def test_a_reader_sees_the_days_of_one_run_while_others_are_published(write, tmp_path):
    write("a", 0, 2).publish("{}", NOW)
    runs = [write(name, 0, 2) for name in "bcd"]
    seen, done = set(), threading.Event()

    def read():
        while not done.is_set():
            files = [table_files(str(tmp_path), table) for table in ("one", "two")]
            tables = open_tables(str(tmp_path))
            both = [tables.files(table, day) for table in ("one", "two") for day in days(0, 2)]
            seen.add(len({path.split("/")[-4] for each in both for path in each}))
            seen.update(len({path.split("/")[-4] for path in each}) for each in files)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for replacement in runs:
            replacement._shown = shown_tables(replacement._storage)
            replacement.publish("{}", NOW)
    finally:
        done.set()
        reader.join()
    assert seen == {1}


def test_files_that_no_run_shows_are_removed_when_no_program_can_need_them_any_more(spark, write, tmp_path):
    storage = open_storage(spark, str(tmp_path))
    for number, (run, first, last) in enumerate([("a", 0, 3), ("b", 1, 2), ("c", 2, 3), ("d", 0, 3)]):
        write(run, first, last).publish("{}", NOW + number * KEEP)

    def folders():
        return {run.name: len(list(run.glob("one/day=*"))) for run in sorted((tmp_path / RUNS).iterdir())}

    assert folders() == {"a": 4, "b": 2, "c": 2, "d": 4}
    assert remove_unused(storage, KEEP, NOW + 2.5 * KEEP) == []
    assert folders() == {"a": 2, "b": 2, "c": 2, "d": 4}, "the run b shows days 0 and 3 of the run a"
    assert remove_unused(storage, KEEP, NOW + 3.5 * KEEP) == []
    assert folders() == {"a": 1, "b": 1, "c": 2, "d": 4}
    assert contents(tmp_path) == {"one": ["d"] * 4, "two": ["d"] * 4}
    assert remove_unused(storage, KEEP, NOW + 5 * KEEP) == []
    assert folders() == {"d": 4}
    write("e", 3, 3).publish("{}", NOW + 6 * KEEP)
    write(UNFINISHED, 3, 3)
    shutil.copytree(tmp_path / RUNS / "d", tmp_path / RUNS / "a copy")
    assert remove_unused(storage, KEEP, NOW + 6 * KEEP) == [f"removed the run {UNFINISHED}, which was not finished"]
    shutil.rmtree(tmp_path / RUNS / "a copy")
    assert contents(tmp_path)["one"] == ["d", "d", "d", "e"]
    assert current_run(storage).earlier.keys() == {"d"}  # type: ignore[union-attr]


def test_removing_goes_on_where_it_was_interrupted(spark, write, tmp_path, monkeypatch):
    storage = open_storage(spark, str(tmp_path))
    for run, first, last in [("a", 0, 3), ("b", 1, 2), ("c", 2, 3)]:
        write(run, first, last).publish("{}", NOW)
    for number in range(1, 20):
        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "delete", failing(LocalStorage.delete, [0], number, is_done=False))
            try:
                remove_unused(storage, KEEP, NOW + 3 * KEEP)
            except Torn:
                pass
            else:
                break
        assert contents(tmp_path)["one"] == ["a", "b", "c", "c"]
    assert number > 1
    assert len(list((tmp_path / RUNS).glob("*/one/day=*"))) == 4


def test_an_output_that_lost_its_pointer_is_refused_and_keeps_its_files(spark, write, tmp_path):
    for run in (UNFINISHED, UNFINISHED.replace("03", "04")):
        write(run, 0, 2).publish("{}", NOW)
    (tmp_path / CURRENT).unlink()
    storage = open_storage(spark, str(tmp_path))
    with pytest.raises(AnalyticsError, match=r"has 2 runs, but current.json, .* is missing") as raised:
        shown_tables(storage)
    (tmp_path / CURRENT).write_text(str(raised.value).partition("content ")[2].rpartition(" to read")[0])
    assert contents(tmp_path)["one"] == [UNFINISHED.replace("03", "04")] * 3


def test_a_removal_that_was_killed_goes_on_even_if_the_clock_goes_back(spark, write, tmp_path, monkeypatch):
    storage = open_storage(spark, str(tmp_path))
    for run, first, last in [("a", 0, 3), ("b", 0, 3)]:
        write(run, first, last).publish("{}", NOW)
    with monkeypatch.context() as patch, pytest.raises(Torn):
        patch.setattr(LocalStorage, "delete", failing(LocalStorage.delete, [0], 1, is_done=True))
        remove_unused(storage, KEEP, NOW + 2 * KEEP)
    assert remove_unused(storage, KEEP, NOW - KEEP) == []
    assert [path.name for path in (tmp_path / RUNS).iterdir()] == ["b"]
    assert contents(tmp_path)["one"] == ["b"] * 4


def test_a_table_without_any_row_has_no_files(spark, write, tmp_path):
    late = write("a", 0, 0)
    late.write(spark.createDataFrame([], COLUMNS), "three", days(0, 1))
    late.publish("{}", NOW)
    assert table_files(str(tmp_path), "three") == []


@pytest.mark.parametrize(
    "text", [b"\xff\xfe\x00", b"[" * 100_000, b"{}", b'{"run": 1, "earlier": {}, "tables": {}}'], ids=str
)
@pytest.mark.parametrize("name", [CURRENT, manifest_of("a")])
def test_a_damaged_file_is_an_error_that_names_it(spark, write, tmp_path, name, text):
    write("a", 0, 0).publish("{}", NOW)
    (tmp_path / name).write_bytes(text)
    for read in (lambda: shown_tables(open_storage(spark, str(tmp_path))), lambda: table_files(str(tmp_path), "one")):
        with pytest.raises(AnalyticsError, match=f"{name}: was not written by the analytics, or was damaged"):
            read()


def test_times_without_a_zone_are_in_utc():
    assert Current.parse('{"run": "b", "earlier": {"a": "2026-02-01"}}', CURRENT).earlier == {"a": NOW}


def test_tables_of_an_earlier_version_are_refused(spark, tmp_path):
    (tmp_path / "attempts" / "day=2026-01-01").mkdir(parents=True)
    with pytest.raises(AnalyticsError, match="has tables of an earlier version of celery-rmq-delay"):
        shown_tables(open_storage(spark, str(tmp_path)))


def test_the_files_of_a_table_are_listed_for_other_programs(write, tmp_path):
    with pytest.raises(AnalyticsError, match="no run has been published there"):
        table_files(str(tmp_path), "one")
    write("a", 0, 2).publish("{}", NOW)
    write("b", 1, 1).publish("{}", NOW)
    found = table_files(str(tmp_path), "one")
    assert [path.split("/")[-4] for path in found] == ["a", "b", "a"]
    assert all(Path(path).is_absolute() for path in found)
    chosen = table_files(tmp_path.as_uri(), "one", FIRST, FIRST + timedelta(days=1))
    assert chosen == found[:2]
    for same in (f"file:{tmp_path}", f"FILE://localhost{tmp_path}/", f"{tmp_path} "):
        assert table_files(same, "one") == found
    with pytest.raises(AnalyticsError, match=r"has no table 'three'\. Its tables: one, two"):
        table_files(str(tmp_path), "three")


def test_a_small_file_is_replaced_at_once_on_storage_that_is_not_local(spark, tmp_path):
    storage = Storage(spark, str(tmp_path))
    for text in ("one", "two"):
        assert storage.write(f"{storage.url}/{CURRENT}", text)
        assert storage.read(f"{storage.url}/{CURRENT}") == text
    assert not storage.write(f"{storage.url}/{CURRENT}", "three", replace=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".{CURRENT}.crc", CURRENT]
