"""Rows of the history for tests, and a comparison of frames that names different rows and columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from celery_rmq_delay.analytics.schema import EVENTS
from celery_rmq_delay.analytics.storage.readers import ORIGIN
from celery_rmq_delay.analytics.tables.along import unique, whole_tasks
from celery_rmq_delay.analytics.tables.attempts import ended, still_open
from celery_rmq_delay.analytics.tables.bursts import Bursts
from celery_rmq_delay.analytics.tables.cleaning import by_task
from celery_rmq_delay.analytics.tables.incidents import DEFAULT, described, failed_firsts, failures_in, find, scopes_of
from celery_rmq_delay.analytics.tables.outcomes import ok_counts
from celery_rmq_delay.events.schema import ROLLUP, event_id

Row = Mapping[str, Any]

NOON = datetime(2026, 3, 2, 12, tzinfo=timezone.utc)

#: Differences that are shown.
_MOST_SHOWN = 20


def all_episodes(attempts: DataFrame) -> DataFrame:
    """Return the failure episodes that ended, and the open ones."""
    return ended(attempts).unionByName(still_open(attempts))


def incidents(attempts: DataFrame, counts: DataFrame, bursts: Bursts = DEFAULT) -> DataFrame:
    """Return the incidents of all days of attempts."""
    scopes = scopes_of(attempts.sparkSession, find(failed_firsts(attempts), ok_counts(counts), bursts))
    return described(failures_in(attempts, scopes), ended(attempts), scopes)


def at(seconds: float) -> datetime:
    """Return a time in seconds from noon of the tests' day."""
    return NOON + timedelta(seconds=seconds)


def event(
    kind: str, seconds: float, task_id: str | None = "a", generation: int = 0, attempt: int = 0, **more: Any
) -> Row:
    """Return a row of the history files for an event at so many seconds from noon."""
    found: dict[str, Any] = dict.fromkeys(EVENTS.fieldNames())
    found.update(
        event_id=event_id(task_id or "", generation, attempt, kind),
        kind=kind,
        occurred_at=at(seconds),
        task_id=task_id,
        task="shop.pay",
        queue="payments",
        worker="w1@host",
        generation=generation,
        attempt=attempt,
        crashes=0,
        ladder_ms=[10_000, 60_000],
    )
    if kind == ROLLUP:
        found.update(event_id=f"rollup-{seconds}", task_id=None)
    unknown = set(more) - set(found)
    assert not unknown, f"no columns of the history: {unknown}"
    return {**found, **more}


def outage(day: int, start: float, minutes: int, per_minute: int, name: str = "t", **more: Any) -> list[Row]:
    """Return first attempts that fail from ``start`` on, in seconds from noon, all minutes the same number."""
    each = 60 / per_minute
    return [
        event("parked", day * 86_400 + start + number * each, f"{name}-{day}-{start}-{number}", **more)
        for number in range(minutes * per_minute)
    ]


def frame(spark: SparkSession, events: Iterable[Row]) -> DataFrame:
    """Return events as a frame of events by their task."""
    return by_task(plain_frame(spark, events), partitions=2)


def plain_frame(spark: SparkSession, events: Iterable[Row]) -> DataFrame:
    """Return events as a frame."""
    columns = StructType([*EVENTS, *ORIGIN])
    return spark.createDataFrame([tuple(row.get(name) for name in columns.names) for row in events], columns)


def without_copies(events: DataFrame) -> DataFrame:
    """Return events by their task without copies."""

    def found(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in whole_tasks(batches):
            yield from unique(each)[0].to_batches()

    named = events.withColumnsRenamed({"task_id": "own_id", "of_task": "task_id"})
    return named.mapInArrow(found, named.schema).drop("task_id").withColumnRenamed("own_id", "task_id")


def rows(found: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame; times in UTC."""
    return [_plain(row.asDict(recursive=True)) for row in found.collect()]


def counted(found: DataFrame, column: str) -> Counter[Any]:
    """Count the rows of a frame by the values of a column."""
    return Counter(dict(found.groupBy(column).count().collect()))


def assert_same(found: Iterable[Row], expected: Iterable[Row], key: Iterable[str]) -> None:
    """Compare rows by their ``key`` in any order; the failure names every missing, surplus or different row."""
    names = tuple(key)
    differences = list(_differences(_by_key(found, names), _by_key(expected, names)))
    more = [f"... and {len(differences) - _MOST_SHOWN} more"] if len(differences) > _MOST_SHOWN else []
    assert not differences, "\n".join(["the rows differ:", *differences[:_MOST_SHOWN], *more])


def _by_key(found: Iterable[Row], names: tuple[str, ...]) -> dict[str, Row]:
    keyed: dict[str, Row] = {}
    for row in found:
        label = ", ".join(f"{name}={row[name]!s}" for name in names)
        assert label not in keyed, f"two rows have the key [{label}]"
        keyed[label] = row
    return keyed


def _differences(found: Mapping[str, Row], expected: Mapping[str, Row]) -> Iterable[str]:
    for label in sorted(found.keys() | expected.keys()):
        if label not in expected:
            yield f"[{label}] is too many"
        elif label not in found:
            yield f"[{label}] is missing"
        else:
            for column in sorted(found[label].keys() | expected[label].keys()):
                has, wants = found[label].get(column, "no such column"), expected[label].get(column, "no such column")
                if not _same(has, wants):
                    yield f"[{label}] {column}: found {has!r}, expected {wants!r}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return type(one) is type(other) and bool(one == other)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    # Spark returns times in the zone of this machine, without a time zone.
    return value.astimezone(timezone.utc) if isinstance(value, datetime) else value
