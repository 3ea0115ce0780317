"""Clean the events: keep complete and plausible ones, quarantine the others with the reason, and sort by task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...events.schema import KINDS, ROLLUP
from ...history.tables import COLUMNS
from ..schema import DAY, EVENTS, QUARANTINE
from ..storage.readers import day_of_file

#: How far a worker's clock may be ahead of the clock of this machine.
AHEAD = timedelta(hours=1)

#: The largest count, and the longest time in ms (30 years). Sums of them fit into 64 bits.
MOST = 10**12

_COUNTS = ("generation", "attempt", "max_retries", "tier", "delay_ms", "runtime_ms", "crashes", "ok_count")


@dataclass(frozen=True)
class Cleaned:
    """All rows as they were read, each with a ``verdict``: why it is bad, or null."""

    judged: DataFrame

    @property
    def events(self) -> DataFrame:
        """The good events (`EVENTS`), copies included."""
        return self.judged.where(F.col("verdict").isNull()).select(*EVENTS.names)

    @property
    def quarantine(self) -> DataFrame:
        """The bad rows (`QUARANTINE` and ``day``, the day of their folder)."""
        bad = self.judged.where(F.col("verdict").isNotNull())
        raw = F.coalesce("raw", F.to_json(F.struct(*EVENTS.names)))
        values = {"reason": F.col("verdict"), "file": F.col("file"), "row": raw, DAY.name: day_of_file("file")}
        return bad.select(*[values[name].alias(name) for name in (*QUARANTINE.names, DAY.name)])


def clean(events: DataFrame, now: datetime) -> Cleaned:
    """Return the verdict over events (`EVENTS` and `ORIGIN`) at the time ``now``."""
    # The first reason that holds; null where none does.
    verdict = F.coalesce(F.col("problem"), *[F.when(holds, reason) for reason, holds in _reasons(now)])
    return Cleaned(events.withColumn("verdict", verdict))


def by_task(events: DataFrame, partitions: int) -> DataFrame:
    """Return events moved and sorted so that those of a task are together, and copies of an event, too.

    ``of_task`` is the task's id, or that of the event if there is none. Of events with the same task and id the first
    one is the event: that with the smallest ``(occurred_at, kind, worker, reason)``.
    """
    # Numbers first, as they are compared faster than texts. Computed before rows are moved, so that columns that are
    # not needed later are not moved.
    key = F.coalesce("task_id", "event_id")
    numbered = {"of_task": key, "number": F.xxhash64(key), "tie": F.xxhash64(*EVENTS.names)}
    kept = events.select(*EVENTS.names, *[column.alias(name) for name, column in numbered.items()])
    order = ("number", "of_task", "event_id", "occurred_at", "kind", "worker", "reason", "tie")
    return kept.repartition(partitions, "number").sortWithinPartitions(*order).drop("number", "tie")


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
