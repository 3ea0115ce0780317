"""The table ``hourly``: counts of first attempts, failures and their outcomes per hour."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...events.schema import EXHAUSTED, PARKED, RECOVERED, ROLLUP
from ..schema import HOURLY
from .attempts import is_attempt, is_failed


def hourly(attempts: DataFrame, ok: DataFrame) -> DataFrame:
    """Return the series by queue and task (`HOURLY` and ``day``).

    ``attempts`` count in the hour in which they ended; ``ok`` are the first attempts that succeeded (`ok_counts`).
    """
    counted = (
        attempts.where(is_attempt())
        .groupBy(_hour_of(minute_of("ended_at")), "queue", "task")
        .agg(
            F.count_if(is_failed() & (F.col("attempt") == 0) & (F.col("generation") == 0)).alias("first_attempts"),
            F.count_if(is_failed()).alias("failures"),
            F.count_if(F.col("outcome") == PARKED).alias("parked"),
            F.count_if(F.col("outcome") == RECOVERED).alias("recovered"),
            F.count_if(F.col("outcome") == EXHAUSTED).alias("exhausted"),
        )
    )
    good = ok.groupBy(_hour_of(F.col("minute")), "queue", "task").agg(F.sum("ok").alias("first_attempts"))
    hour = F.timestamp_seconds(F.col("of_hour") * 3600).alias("hour")
    both = counted.unionByName(good, allowMissingColumns=True).groupBy(hour, "queue", "task")
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in HOURLY.fieldNames()[3:]]
    return both.agg(*sums).withColumn("day", F.to_date("hour"))


def ok_counts(events: DataFrame) -> DataFrame:
    """Return the successful first attempts ``ok`` by ``minute``, queue and task, from the rollups of cleaned events.

    A rollup counts in the minute in which it began.
    """
    rollups = events.where(F.col("kind") == ROLLUP)
    key = minute_of("occurred_at").alias("minute"), "queue", "task"
    return rollups.groupBy(*key).agg(F.sum("ok_count").alias("ok"))


def minute_of(time: str) -> Column:
    """Return the minute of a time, as minutes since the epoch."""
    return F.floor(F.unix_micros(time) / 60_000_000)


def _hour_of(minute: Column) -> Column:
    """Return the hour of a minute, as hours since the epoch."""
    return F.floor(minute / 60).alias("of_hour")
