"""Bad input of every kind: bad rows and files are put aside with the reason, and all others counted."""

import json
import random
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from celery_rmq_delay.analytics.days import Days
from celery_rmq_delay.analytics.schema import EVENTS
from celery_rmq_delay.analytics.storage import readers
from celery_rmq_delay.analytics.storage.readers import Read, read_events
from celery_rmq_delay.analytics.tables.attempts import attempts
from celery_rmq_delay.analytics.tables.cleaning import by_task, clean
from celery_rmq_delay.exceptions import AnalyticsError
from tests.support.spark import reference
from tests.support.spark.frames import NOON, Row, assert_same, at, counted, event, plain_frame, rows, without_copies
from tests.support.spark.history_files import SCHEMA, changed, without, write, write_day
from tests.support.spark.random_histories import RandomHistory

DAY = NOON.date()
NOW = NOON + timedelta(hours=6)
GOOD = [event("parked", 0), event("recovered", 10, attempt=1)]
FOLDER = f"day={DAY}"

#: Faults of a file, with the reason for which it is left out and the reported text.
LEFT_OUT = {
    "without a column that every event has": ("missing:queue", "The column queue is missing."),
    "a text for delays": ("wrong_schema", "The column ladder_ms is string, not array<bigint>."),
    "a number for a time": ("wrong_schema", "The column occurred_at is bigint, not timestamp."),
    "truncated": ("unreadable_file", "is not a Parquet file"),
    "no table": ("unreadable_file", "is not a Parquet file"),
    "empty": ("unreadable_file", "is not a Parquet file (length is too low: 0)"),
}
#: Values that fit the type of their column, as (column, type of the file, value).
FITTING = [
    ("occurred_at", pa.timestamp("ns", "UTC"), at(5)),
    ("occurred_at", pa.timestamp("ms"), at(5).replace(tzinfo=None)),
    ("occurred_at", pa.string(), at(5).isoformat()),
    ("attempt", pa.int64(), 3),
    ("attempt", pa.string(), "3"),
    ("attempt", pa.float64(), 3.0),
    ("attempt", pa.decimal128(9, 2), Decimal("3.00")),
    ("ladder_ms", pa.list_(pa.int32()), [10_000, 60_000]),
    ("task_id", pa.large_string(), "fits"),
    ("task_id", pa.dictionary(pa.int32(), pa.string()), "fits"),
    ("tier", pa.null(), None),
    ("delay_ms", pa.float64(), None),
]
#: Values that do not fit.
UNFITTING = [
    ("attempt", pa.string(), "three"),
    ("attempt", pa.int64(), 2**40),
    ("attempt", pa.float64(), 2.5),
    ("occurred_at", pa.string(), "yesterday"),
    ("ladder_ms", pa.list_(pa.string()), ["10s"]),
    ("ladder_ms", pa.list_(pa.int64()), [10_000, None]),
]


@dataclass(frozen=True)
class Written:
    """The files of a history with everything that can be wrong: those to leave out, and those of `UNFITTING`."""

    folder: Path
    left_out: dict[str, Path]
    unfitting: list[Path]


@dataclass(frozen=True)
class Found:
    """The results of Spark for that history: all at once, as one job for each file would take longer."""

    read: Read
    rejected: list[Row]
    judged: list[Row]
    quarantine: list[Row]

    def of(self, task_id):
        """Return the rows of a task with their verdicts."""
        return sorted((row for row in self.judged if row["task_id"] == task_id), key=lambda row: row["occurred_at"])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("history")
    day = folder / FOLDER
    for name in (".part-1.parquet.tmp", "_SUCCESS", "_part-2.parquet"):
        day.mkdir(exist_ok=True)
        (day / name).write_text("unfinished")
    write(folder, [event("parked", 5, "old", tier=1)], without("tier"))
    for number, (column, kind, value) in enumerate(FITTING):
        write_day(day, [{**fitting_row(number), column: value}], changed(column, kind))
    unfitting = [
        write_day(day, [{**event("parked", 5, "misfit"), column: value}], changed(column, kind))
        for column, kind, value in UNFITTING
    ]
    soon, far = NOW + timedelta(minutes=59), NOW + timedelta(minutes=61)
    write(folder, [*GOOD, event("parked", 0, "far", occurred_at=far), event("parked", 0, "soon", occurred_at=soon)])
    return Written(folder, spoilt(day), unfitting)


def fitting_row(number):
    return {**event("parked", 5, "fits", attempt=3), "event_id": f"fits {number}"}


def spoilt(day):
    """Write the files of `LEFT_OUT`."""
    row = event("parked", 5, "left out")
    truncated, text, empty = write_day(day, [row]), day / "part-notes.txt", day / "part-0.parquet"
    truncated.write_bytes(truncated.read_bytes()[:-100])
    text.write_text("Not a table at all.\n" * 10)
    empty.touch()
    delays = write_day(day, [{**row, "ladder_ms": "10s, 1m"}], changed("ladder_ms", pa.string()))
    time = write_day(day, [{**row, "occurred_at": 1_700_000_000}], changed("occurred_at", pa.int64()))
    files = (write_day(day, [row], without("queue")), delays, time, truncated, text, empty)
    return dict(zip(LEFT_OUT, files, strict=True))


@pytest.fixture(scope="module")
def found(shared_spark, written):
    def work(spark):
        read, cleaned = read_and_clean(spark, written.folder)
        frames = (read.rejected, cleaned.judged.select(*EVENTS.names, "verdict"), cleaned.quarantine)
        return Found(read, *map(rows, frames))

    return shared_spark.run(work)


def read_and_clean(spark, history, days=None):
    found = read_events(spark, str(history), days)
    return found, clean(found.events, NOW)


def kinds(cleaned):
    return sorted(row["kind"] for row in cleaned.events.select("kind").collect())


def test_nothing_but_bad_files_is_left_out_each_with_its_reason(found, written):
    """Hidden files are ignored; the report names the others with their faults."""
    names = {path.name: what for what, path in written.left_out.items()}
    left_out = {names.pop(Path(each.file.path).name): each for each in found.read.left_out}
    assert names == {}
    assert {what: each.reason for what, each in left_out.items()} == {what: LEFT_OUT[what][0] for what in LEFT_OUT}
    for what, (_, error) in LEFT_OUT.items():
        assert error in left_out[what].error
    rejected = [(row["reason"], row["file"], row["day"], json.loads(row["row"])) for row in found.rejected]
    assert rejected == [(each.reason, each.file.path, DAY, {"error": each.error}) for each in found.read.left_out]
    assert found.of("left out") == []
    assert [(row["kind"], row["verdict"]) for row in found.of("a")] == [("parked", None), ("recovered", None)]


def test_a_file_without_a_column_that_may_be_null_is_read(found):
    assert [(row["tier"], row["verdict"]) for row in found.of("old")] == [(None, None)]


@pytest.mark.parametrize("found", ["list_files", "read_footers"])
def test_a_file_that_another_run_has_merged_meanwhile_is_no_bad_file(spark, tmp_path, monkeypatch, found):
    """Without it, the day would be written with too few rows."""
    write(tmp_path, GOOD)
    gone = write_day(tmp_path / FOLDER, [event("parked", 5, "b")], without("tier"))
    look = getattr(readers, found)

    def look_and_lose(*arguments):
        seen = list(look(*arguments))
        gone.unlink()
        return seen

    monkeypatch.setattr(readers, found, look_and_lose)
    with pytest.raises(AnalyticsError, match="disappeared while it was read: another run may be compacting"):
        read_events(spark, str(tmp_path))


@pytest.mark.parametrize("number", range(len(FITTING)), ids=lambda number: "-".join(map(str, FITTING[number])))
def test_a_value_that_fits_the_type_of_its_column_is_read(found, number):
    (row,) = [row for row in found.judged if row["event_id"] == f"fits {number}"]
    assert_same([row], [{**fitting_row(number), "verdict": None}], ["event_id"])


def test_times_in_nanoseconds_are_cut_to_microseconds_exactly(spark, tmp_path):
    chance = random.Random(1)
    micros = [chance.randrange(-(10**15), 2 * 10**15) for _ in range(2_000)]
    bad = [{**event("parked", 0, str(each)), "occurred_at": each * 1_000 + chance.randrange(1_000)} for each in micros]
    write_day(tmp_path / FOLDER, bad, changed("occurred_at", pa.timestamp("ns", "UTC")))
    found = read_events(spark, str(tmp_path)).events.select("task_id", F.unix_micros("occurred_at")).collect()
    assert [(task_id, at) for task_id, at in found if int(task_id) != at] == []
    assert len(found) == len(micros)


@pytest.mark.parametrize("number", range(len(UNFITTING)), ids=lambda number: "-".join(map(str, UNFITTING[number])))
def test_a_value_that_does_not_fit_its_type_puts_the_row_aside(found, written, number):
    column, _, value = UNFITTING[number]
    (row,) = [row for row in found.quarantine if row["file"].endswith(written.unfitting[number].name)]
    assert (row["reason"], row["day"]) == (f"wrong_type:{column}", DAY)
    assert json.loads(row["row"])[column] == value


def test_an_empty_day_and_a_file_without_rows(spark, tmp_path):
    (tmp_path / FOLDER).mkdir()
    found, cleaned = read_and_clean(spark, tmp_path)
    assert (found.days, found.rows, kinds(cleaned)) == ((), 0, [])
    write_day(tmp_path / FOLDER, [])
    found, cleaned = read_and_clean(spark, tmp_path)
    assert (found.days, found.rows, kinds(cleaned)) == ((DAY,), 0, [])
    assert attempts(by_task(cleaned.events, partitions=2)).to_frame().collect() == []


def test_an_event_from_the_future_is_put_aside(found):
    assert [row["verdict"] for task_id in ("far", "soon") for row in found.of(task_id)] == ["from_the_future", None]


def test_cleaning_equals_the_reference_on_random_histories(spark):
    now = datetime(2030, 1, 1, tzinfo=timezone.utc)
    history = [row for seed in range(30) for row in RandomHistory(seed).rows]
    events, bad = reference.clean(history, now)
    cleaned = clean(plain_frame(spark, history), now)
    assert_same(rows(without_copies(by_task(cleaned.events, partitions=2))), events, ["event_id"])
    verdicts = counted(cleaned.judged, "verdict")
    assert verdicts.pop(None) == len(history) - sum(bad.values()) > len(events)
    assert verdicts == bad


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ((), "there is no such folder"),
        (("history",), None),
        (("history/orders.csv",), "found orders.csv, but no folder day=YYYY-MM-DD"),
        (("history/day=soon",), "found day=soon, but no folder day=YYYY-MM-DD"),
        (("history/day=2026-02-30",), "found day=2026-02-30, but no folder day=YYYY-MM-DD"),
    ],
    ids=str,
)
def test_a_folder_without_a_history_is_an_error_or_empty(spark, tmp_path, make, message):
    for name in make:
        (tmp_path / name).mkdir(parents=True)
    if message is None:
        assert read_events(spark, str(tmp_path / "history")).events.collect() == []
        return
    with pytest.raises(AnalyticsError, match=message) as caught:
        read_events(spark, str(tmp_path / "history"))
    assert str(tmp_path / "history") in str(caught.value)


def test_only_the_days_that_are_asked_for_are_read(spark, tmp_path):
    write(tmp_path, [event("parked", 86_400 * number, f"t{number}") for number in range(-2, 3)])
    found, cleaned = read_and_clean(spark, tmp_path, Days(DAY - timedelta(days=1), DAY))
    assert found.days == (date(2026, 3, 1), date(2026, 3, 2))
    assert sorted(row["task_id"] for row in rows(cleaned.events)) == ["t-1", "t0"]


def test_files_with_the_same_columns_are_read_by_one_scan(spark, tmp_path):
    for number in range(20):
        write(tmp_path, [event("parked", number, f"t{number}")])
    write(tmp_path, [event("parked", 50, "old")], without("tier"))
    found = read_events(spark, str(tmp_path))
    plan: Any = found.events._jdf
    assert plan.queryExecution().executedPlan().toString().count("FileScan parquet") == 2
    assert found.rows == found.events.count() == 21
    assert SCHEMA.names == found.events.columns[: len(SCHEMA.names)]
