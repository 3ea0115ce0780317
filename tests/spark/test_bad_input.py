"""Bad input of every kind: a row or a file that is put aside with the reason, and all others counted."""

from __future__ import annotations

import json
import random
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from celery_rmq_delay.analytics import readers
from celery_rmq_delay.analytics.attempts import attempts
from celery_rmq_delay.analytics.cleaning import Cleaned, clean
from celery_rmq_delay.analytics.days import Days
from celery_rmq_delay.analytics.readers import Read, read_events
from celery_rmq_delay.exceptions import AnalyticsError

from . import reference
from .frames import NOON, assert_same, at, counted, event, frame, rows
from .history_files import SCHEMA, changed, without, write, write_day
from .random_histories import RandomHistory

DAY = NOON.date()
NOW = NOON + timedelta(hours=6)
GOOD = [event("parked", 0), event("recovered", 10, attempt=1)]
FOLDER = f"day={DAY}"


def read(spark: SparkSession, history: Path, days: Days | None = None) -> tuple[Read, Cleaned]:
    found = read_events(spark, str(history), days)
    return found, clean(found.events, NOW, partitions=2)


def reasons(cleaned: Cleaned) -> list[str]:
    return sorted(row["reason"] for row in cleaned.quarantine.collect())


def kinds(cleaned: Cleaned) -> list[str]:
    return sorted(row["kind"] for row in cleaned.events.select("kind").collect())


def assert_left_out(spark: SparkSession, history: Path, bad: Path, reason: str, error: str) -> None:
    """Nothing but the bad file is left out; it is told of by its name and what is wrong with it."""
    found, cleaned = read(spark, history)
    (rejected,) = found.left_out
    assert (Path(rejected.file.path).name, rejected.reason) == (bad.name, reason)
    assert error in rejected.error
    (row,) = rows(found.rejected)
    assert (row["reason"], row["day"], json.loads(row["row"])) == (reason, DAY, {"error": rejected.error})
    assert kinds(cleaned) == ["parked", "recovered"]
    assert reasons(cleaned) == []


def test_a_file_without_a_column_that_every_event_has(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    bad = write_day(tmp_path / FOLDER, [event("parked", 5, "b")], without("queue"))
    assert_left_out(spark, tmp_path, bad, "missing:queue", "The column queue is missing.")


@pytest.mark.parametrize("found", ["list_files", "read_footers"])
def test_a_file_that_another_run_has_merged_meanwhile_is_no_bad_file(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    """Without it, the day would be written with too few rows."""
    write(tmp_path, GOOD)
    gone = write_day(tmp_path / FOLDER, [event("parked", 5, "b")], without("tier"))
    look = getattr(readers, found)

    def look_and_lose(*arguments: Any) -> list[Any]:
        seen = list(look(*arguments))
        gone.unlink()
        return seen

    monkeypatch.setattr(readers, found, look_and_lose)
    with pytest.raises(AnalyticsError, match="went away while it was read: does another run compact"):
        read_events(spark, str(tmp_path))


def test_a_file_without_a_column_that_may_be_null_is_read(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    write(tmp_path, [event("parked", 5, "b", tier=1)], without("tier"))
    found, cleaned = read(spark, tmp_path)
    assert not found.left_out
    assert [row["tier"] for row in rows(cleaned.events.where("task_id = 'b'"))] == [None]


def test_a_file_whose_column_has_a_type_that_cannot_be_converted(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    row = {**event("parked", 5, "b"), "ladder_ms": "10s, 1m"}
    bad = write_day(tmp_path / FOLDER, [row], changed("ladder_ms", pa.string()))
    assert_left_out(spark, tmp_path, bad, "wrong_schema", "The column ladder_ms is string, not array<bigint>.")


def test_a_number_is_not_taken_for_a_time(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    row = {**event("parked", 5, "b"), "occurred_at": 1_700_000_000}
    bad = write_day(tmp_path / FOLDER, [row], changed("occurred_at", pa.int64()))
    assert_left_out(spark, tmp_path, bad, "wrong_schema", "The column occurred_at is bigint, not timestamp.")


@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        ("occurred_at", pa.timestamp("ns", "UTC"), at(5)),
        ("occurred_at", pa.timestamp("ms"), at(5).replace(tzinfo=None)),
        ("occurred_at", pa.string(), at(5).isoformat()),
        ("attempt", pa.int64(), 3),
        ("attempt", pa.string(), "3"),
        ("attempt", pa.float64(), 3.0),
        ("attempt", pa.decimal128(9, 2), Decimal("3.00")),
        ("ladder_ms", pa.list_(pa.int32()), [10_000, 60_000]),
        ("task_id", pa.large_string(), "b"),
        ("task_id", pa.dictionary(pa.int32(), pa.string()), "b"),
        ("tier", pa.null(), None),
        ("delay_ms", pa.float64(), None),
    ],
    ids=str,
)
def test_a_value_that_can_be_told_in_the_column_s_type_is_read(
    spark: SparkSession, tmp_path: Path, column: str, kind: pa.DataType, value: Any
) -> None:
    same = event("parked", 5, "b", attempt=3)
    write_day(tmp_path / FOLDER, [{**same, column: value}], changed(column, kind))
    found, cleaned = read(spark, tmp_path)
    assert not found.left_out
    assert_same(rows(cleaned.events), [same], ["event_id"])


def test_times_in_nanoseconds_are_cut_to_microseconds_exactly(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(1)
    micros = [chance.randrange(-(10**15), 2 * 10**15) for _ in range(2_000)]
    bad = [{**event("parked", 0, str(each)), "occurred_at": each * 1_000 + chance.randrange(1_000)} for each in micros]
    write_day(tmp_path / FOLDER, bad, changed("occurred_at", pa.timestamp("ns", "UTC")))
    found = read_events(spark, str(tmp_path)).events.select("task_id", F.unix_micros("occurred_at")).collect()
    assert [(task_id, at) for task_id, at in found if int(task_id) != at] == []
    assert len(found) == len(micros)


@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        ("attempt", pa.string(), "three"),
        ("attempt", pa.int64(), 2**40),
        ("attempt", pa.float64(), 2.5),
        ("occurred_at", pa.string(), "yesterday"),
        ("ladder_ms", pa.list_(pa.string()), ["10s"]),
        ("ladder_ms", pa.list_(pa.int64()), [10_000, None]),
    ],
    ids=str,
)
def test_a_value_that_its_type_cannot_tell_puts_the_row_aside(
    spark: SparkSession, tmp_path: Path, column: str, kind: pa.DataType, value: Any
) -> None:
    write(tmp_path, GOOD)
    bad = write_day(tmp_path / FOLDER, [{**event("parked", 5, "b"), column: value}], changed(column, kind))
    found, cleaned = read(spark, tmp_path)
    assert not found.left_out
    (row,) = rows(cleaned.quarantine)
    assert (row["reason"], row["day"]) == (f"wrong_type:{column}", DAY)
    assert row["file"].endswith(bad.name)
    assert json.loads(row["row"])[column] == value
    assert kinds(cleaned) == ["parked", "recovered"]


def test_a_truncated_file(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    bad = write_day(tmp_path / FOLDER, [event("parked", 5, "b")])
    bad.write_bytes(bad.read_bytes()[:-100])
    assert_left_out(spark, tmp_path, bad, "unreadable_file", "is not a Parquet file")


def test_a_file_that_is_not_parquet(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    bad = tmp_path / FOLDER / "part-notes.txt"
    bad.write_text("Not a table at all.\n" * 10)
    assert_left_out(spark, tmp_path, bad, "unreadable_file", "is not a Parquet file")


def test_an_empty_file(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    bad = tmp_path / FOLDER / "part-0.parquet"
    bad.touch()
    assert_left_out(spark, tmp_path, bad, "unreadable_file", "is not a Parquet file (length is too low: 0)")


def test_hidden_files_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    for name in (".part-1.parquet.tmp", "_SUCCESS", "_part-2.parquet"):
        (tmp_path / FOLDER / name).write_text("unfinished")
    found, cleaned = read(spark, tmp_path)
    assert not found.left_out
    assert kinds(cleaned) == ["parked", "recovered"]


def test_an_empty_day_and_a_file_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    found, cleaned = read(spark, tmp_path)
    assert (found.days, found.rows, kinds(cleaned)) == ((), 0, [])
    write_day(tmp_path / FOLDER, [])
    found, cleaned = read(spark, tmp_path)
    assert (found.days, found.rows, kinds(cleaned)) == ((DAY,), 0, [])
    assert attempts(cleaned.events).collect() == []


def test_clocks_that_differ_between_workers_turn_no_time_backwards(spark: SparkSession, tmp_path: Path) -> None:
    write(
        tmp_path, [event("parked", 0), event("parked", -50, attempt=1, worker="w2"), event("recovered", 9, attempt=2)]
    )
    _, cleaned = read(spark, tmp_path)
    assert reasons(cleaned) == []
    found = sorted(rows(attempts(cleaned.events)), key=lambda row: row["attempt"])
    assert [row["t_seconds"] for row in found] == [0.0, 0.0, 9.0]


def test_an_event_from_the_future(spark: SparkSession, tmp_path: Path) -> None:
    soon, far = NOW + timedelta(minutes=59), NOW + timedelta(minutes=61)
    write(tmp_path, [*GOOD, event("parked", 0, "b", occurred_at=far), event("parked", 0, "c", occurred_at=soon)])
    _, cleaned = read(spark, tmp_path)
    assert reasons(cleaned) == ["from_the_future"]
    assert kinds(cleaned) == ["parked", "parked", "recovered"]


def test_an_event_in_the_folder_of_another_day_is_late_and_not_wrong(spark: SparkSession, tmp_path: Path) -> None:
    write_day(tmp_path / "day=2026-03-03", [event("parked", 0)])
    _, cleaned = read(spark, tmp_path)
    assert [row["day"] for row in rows(attempts(cleaned.events))] == [DAY]
    assert reasons(cleaned) == []


def test_copies_of_an_event_count_once_and_the_earliest_is_it(spark: SparkSession, tmp_path: Path) -> None:
    copies = [event("parked", 3, worker="w3"), event("forwarded", 2, worker="w2"), event("parked", 2, worker="w9")]
    for each in copies:
        write(tmp_path, [each, *GOOD[1:]])
    _, cleaned = read(spark, tmp_path)
    found = {row["kind"]: row["worker"] for row in rows(cleaned.events)}
    assert found == {"forwarded": "w2", "recovered": "w1@host"}
    assert counted(cleaned.marked, "verdict") == {None: 2, "duplicate": 4}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"event_id": None}, "missing:event_id"),
        ({"worker": None}, "missing:worker"),
        ({"crashes": None}, "missing:crashes"),
        ({"kind": "vanished"}, "unknown_kind"),
        ({"kind": "rollup", "task_id": None}, "missing:ok_count"),
        ({"kind": "rollup", "task_id": None, "ok_count": -1}, "bad_count"),
        ({"task_id": None}, "no_task_id"),
        ({"attempt": -1}, "bad_count"),
        ({"delay_ms": -5}, "bad_count"),
        ({"ladder_ms": [10, -10]}, "bad_count"),
    ],
    ids=str,
)
def test_a_row_that_no_worker_tells(change: dict[str, Any], reason: str, spark: SparkSession) -> None:
    bad = {**event("parked", 5, "b"), **change}
    cleaned = clean(frame(spark, [*GOOD, bad]), NOW, partitions=2)
    assert counted(cleaned.marked, "verdict") == {None: 2, reason: 1}


def test_cleaning_equals_the_reference_on_random_histories(spark: SparkSession) -> None:
    now = datetime(2030, 1, 1, tzinfo=timezone.utc)
    history = [row for seed in range(30) for row in RandomHistory(seed).rows]
    events, bad = reference.clean(history, now)
    cleaned = clean(frame(spark, history), now, partitions=2)
    assert_same(rows(cleaned.events), events, ["event_id"])
    verdicts = counted(cleaned.marked, "verdict")
    assert verdicts.pop("duplicate") == len(history) - len(events) - sum(bad.values())
    assert verdicts.pop(None) == len(events)
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
def test_a_folder_that_is_no_history(
    spark: SparkSession, tmp_path: Path, make: tuple[str, ...], message: str | None
) -> None:
    for name in make:
        (tmp_path / name).mkdir(parents=True)
    if message is None:
        assert read_events(spark, str(tmp_path / "history")).events.collect() == []
        return
    with pytest.raises(AnalyticsError, match=message) as caught:
        read_events(spark, str(tmp_path / "history"))
    assert str(tmp_path / "history") in str(caught.value)


def test_only_the_days_that_are_asked_for_are_read(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [event("parked", 86_400 * number, f"t{number}") for number in range(-2, 3)])
    found, cleaned = read(spark, tmp_path, Days(DAY - timedelta(days=1), DAY))
    assert found.days == (date(2026, 3, 1), date(2026, 3, 2))
    assert sorted(row["task_id"] for row in rows(cleaned.events)) == ["t-1", "t0"]


def test_files_with_the_same_columns_are_read_by_one_scan(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path, [event("parked", number, f"t{number}")])
    write(tmp_path, [event("parked", 50, "old")], without("tier"))
    found = read_events(spark, str(tmp_path))
    plan: Any = found.events._jdf
    assert plan.queryExecution().executedPlan().toString().count("FileScan parquet") == 2
    assert found.rows == found.events.count() == 21
    assert SCHEMA.names == found.events.columns[: len(SCHEMA.names)]
