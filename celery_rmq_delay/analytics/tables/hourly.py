"""The table ``hourly``: counts of first attempts, failures and their outcomes per hour."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ..schema import HOURLY
from .counts import HOURS, SUCCESSES, of


def hourly(counts: DataFrame) -> DataFrame:
    """Return the series by queue and task (`HOURLY` and ``day``), from the counts of the attempts.

    Attempts count in the hour in which they ended, successful first attempts in that in which their rollup began.
    """
    hour = F.timestamp_seconds(F.floor(F.col("minute") / 60) * 3600).alias("hour")
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in HOURLY.fieldNames()[3:]]
    found = counts.where(F.col("of").isin(HOURS, SUCCESSES)).groupBy(hour, "queue", "task").agg(*sums)
    return found.withColumn("day", F.to_date("hour"))


def ok_counts(counts: DataFrame) -> DataFrame:
    """Return the successful first attempts ``ok`` by ``minute``, queue and task."""
    return of(counts, SUCCESSES).groupBy("minute", "queue", "task").agg(F.sum("first_attempts").alias("ok"))


def minute_of(time: str) -> Column:
    """Return the minute of a time, as minutes since the epoch."""
    return F.floor(F.unix_micros(time) / 60_000_000)
