"""Events that tables may count: whole, possible, and each once. The others are kept apart, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from ...events.schema import KINDS, ROLLUP
from ...history.columns import COLUMNS
from ..schema import DAY, EVENTS, QUARANTINE
from ..storage.readers import ORIGIN

#: How far a worker's clock may be ahead of this machine's.
AHEAD = timedelta(hours=1)

#: What is said of the copies of an event, which are left out and only counted.
DUPLICATE = "duplicate"

#: No count is larger, nor a time in ms: that is 30 years. Sums of them fit into 64 bits.
MOST = 10**12

_COUNTS = ("generation", "attempt", "max_retries", "tier", "delay_ms", "runtime_ms", "crashes", "ok_count")


@dataclass(frozen=True)
class Cleaned:
    """All rows, each with a ``verdict``: null, `DUPLICATE`, or why it is bad.

    ``judged`` rows were looked at one by one, where they were read: none is a `DUPLICATE` yet. ``marked`` ones are
    hash-partitioned by ``coalesce(task_id, event_id)``, and so is what is selected of them.
    """

    judged: DataFrame
    marked: DataFrame

    @property
    def events(self) -> DataFrame:
        """The good events (`EVENTS`), one row per ``event_id``."""
        return self.marked.where(F.col("verdict").isNull()).select(*EVENTS.names)

    @property
    def quarantine(self) -> DataFrame:
        """The bad rows (`QUARANTINE` and ``day``, that of the folder they are in)."""
        bad = self.judged.where(F.col("verdict").isNotNull())
        raw = F.coalesce("raw", F.to_json(F.struct(*EVENTS.names)))
        day = F.regexp_extract("file", r".*/day=(\d{4}-\d{2}-\d{2})/", 1).try_cast("date")
        values = {"reason": F.col("verdict"), "file": F.col("file"), "row": raw, DAY.name: day}
        return bad.select(*[values[name].alias(name) for name in (*QUARANTINE.names, DAY.name)])

    def counted(self, counts: Observation) -> Cleaned:
        """Return the same; ``counts`` has ``rows``, ``events`` and ``duplicates`` when something has computed it."""
        duplicates = F.count_if(F.col("verdict") == DUPLICATE).alias("duplicates")
        events = F.count_if(F.col("verdict").isNull()).alias("events")
        return replace(self, marked=self.marked.observe(counts, F.count("*").alias("rows"), events, duplicates))


def clean(events: DataFrame, now: datetime, partitions: int | None = None) -> Cleaned:
    """Return the verdict over events (`EVENTS`, and `ORIGIN` where `read_events` read them) as things are at ``now``.

    Of rows with the same ``event_id`` and task, that with the smallest ``(occurred_at, kind, worker, reason)`` is the
    event.
    ``partitions``: of the one shuffle here; None for Spark's setting.
    """
    known = [field.name for field in ORIGIN if field.name in events.columns]
    missing = [F.lit(None).cast(field.dataType).alias(field.name) for field in ORIGIN if field.name not in known]
    judged = events.select(*EVENTS.names, *known, *missing).withColumn("verdict", _verdict(now))
    key = F.coalesce("task_id", "event_id")
    # Computed before rows are moved, so that columns which nothing else needs stay where they are.
    kept = judged.select(*EVENTS.names, "verdict", F.xxhash64(*EVENTS.names).alias("tie"))
    moved = kept.repartition(partitions, key) if partitions else kept.repartition(key)
    same = Window.partitionBy(key, "event_id", F.col("verdict").isNull())
    first = same.orderBy("occurred_at", "kind", "worker", "reason", "tie")
    copies = moved.withColumn("copy", F.row_number().over(first))
    verdict = F.when((F.col("copy") > 1) & F.col("verdict").isNull(), DUPLICATE).otherwise(F.col("verdict"))
    return Cleaned(judged, copies.withColumn("verdict", verdict).drop("copy", "tie"))


def of_no_task(events: DataFrame) -> DataFrame:
    """Return the rows that go by their event's id, rollups among them: cleaned alone, they come out the same."""
    return events.where(F.coalesce("task_id", "event_id") == F.col("event_id"))


def _verdict(now: datetime) -> Column:
    """Return why a row is bad: the first reason that holds; null where none does."""
    return F.coalesce(F.col("problem"), *[F.when(holds, reason) for reason, holds in _reasons(now)])


def _reasons(now: datetime) -> Iterator[tuple[str, Column]]:
    for column in COLUMNS:
        if column.required:
            yield f"missing:{column.name}", F.col(column.name).isNull()
    is_rollup = F.col("kind") == ROLLUP
    yield "missing:ok_count", is_rollup & F.col("ok_count").isNull()
    yield "unknown_kind", ~F.col("kind").isin(*KINDS)
    # A message that nobody can decode may have no id; it ended all the same.
    has_none = F.col("task_id").isNull() & ~F.coalesce(F.col("reason") == "undecodable", F.lit(False))
    yield "no_task_id", ~is_rollup & has_none
    yield "from_the_future", F.col("occurred_at") > F.lit(now + AHEAD)
    for name in _COUNTS:
        yield "bad_count", ~F.col(name).between(0, MOST)
    yield "bad_count", F.exists("ladder_ms", lambda each: ~each.between(0, MOST))
