"""Clean the events: keep complete, plausible and unique ones, and quarantine the others with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...events.schema import KINDS, ROLLUP
from ...history.columns import COLUMNS
from ..schema import DAY, EVENTS, QUARANTINE
from ..storage.readers import ORIGIN, day_of_file

#: How far a worker's clock may be ahead of the clock of this machine.
AHEAD = timedelta(hours=1)

#: The verdict over copies of an event, which are left out and only counted.
DUPLICATE = "duplicate"

#: The largest count, and the longest time in ms (30 years). Sums of them fit into 64 bits.
MOST = 10**12

_COUNTS = ("generation", "attempt", "max_retries", "tier", "delay_ms", "runtime_ms", "crashes", "ok_count")


@dataclass(frozen=True)
class Cleaned:
    """All rows, each with a ``verdict``: null, `DUPLICATE`, or why it is bad.

    ``judged`` rows were checked one by one where they were read: none is a `DUPLICATE` yet. ``marked`` rows, and any
    selection of them, are hash-partitioned by ``coalesce(task_id, event_id)``.
    """

    judged: DataFrame
    marked: DataFrame

    @property
    def events(self) -> DataFrame:
        """The good events (`EVENTS`), one row per ``event_id``."""
        return self.marked.where(F.col("verdict").isNull()).select(*EVENTS.names)

    @property
    def quarantine(self) -> DataFrame:
        """The bad rows (`QUARANTINE` and ``day``, the day of their folder)."""
        bad = self.judged.where(F.col("verdict").isNotNull())
        raw = F.coalesce("raw", F.to_json(F.struct(*EVENTS.names)))
        values = {"reason": F.col("verdict"), "file": F.col("file"), "row": raw, DAY.name: day_of_file("file")}
        return bad.select(*[values[name].alias(name) for name in (*QUARANTINE.names, DAY.name)])

    def counted(self, counts: Observation) -> Cleaned:
        """Return the same rows; ``counts`` receives ``rows``, ``events`` and ``duplicates`` when they are computed."""
        duplicates = F.count_if(F.col("verdict") == DUPLICATE).alias("duplicates")
        events = F.count_if(F.col("verdict").isNull()).alias("events")
        return replace(self, marked=self.marked.observe(counts, F.count("*").alias("rows"), events, duplicates))


def clean(events: DataFrame, now: datetime, partitions: int | None = None) -> Cleaned:
    """Return the verdict over events (`EVENTS`, and `ORIGIN` if `read_events` read them) at the time ``now``.

    Of rows with the same ``event_id`` and task, the one with the smallest ``(occurred_at, kind, worker, reason)`` is
    the event. ``partitions``: of the only shuffle here; None for Spark's setting.
    """
    known = [field.name for field in ORIGIN if field.name in events.columns]
    missing = [F.lit(None).cast(field.dataType).alias(field.name) for field in ORIGIN if field.name not in known]
    judged = events.select(*EVENTS.names, *known, *missing).withColumn("verdict", _verdict(now))
    key = F.coalesce("task_id", "event_id")
    # Computed before rows are moved, so that columns that are not needed later are not moved.
    kept = judged.select(*EVENTS.names, "verdict", F.xxhash64(*EVENTS.names).alias("tie"))
    moved = kept.repartition(partitions, key) if partitions else kept.repartition(key)
    same = Window.partitionBy(key, "event_id", F.col("verdict").isNull())
    first = same.orderBy("occurred_at", "kind", "worker", "reason", "tie")
    copies = moved.withColumn("copy", F.row_number().over(first))
    verdict = F.when((F.col("copy") > 1) & F.col("verdict").isNull(), DUPLICATE).otherwise(F.col("verdict"))
    return Cleaned(judged, copies.withColumn("verdict", verdict).drop("copy", "tie"))


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
    # A message that cannot be decoded may have no id; it has ended nevertheless.
    has_none = F.col("task_id").isNull() & ~F.coalesce(F.col("reason") == "undecodable", F.lit(False))
    yield "no_task_id", ~is_rollup & has_none
    yield "from_the_future", F.col("occurred_at") > F.lit(now + AHEAD)
    for name in _COUNTS:
        yield "bad_count", ~F.col(name).between(0, MOST)
    yield "bad_count", F.exists("ladder_ms", lambda each: ~each.between(0, MOST))
