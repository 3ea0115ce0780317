"""The table ``hourly``: counts of first attempts, failures and their outcomes per hour."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...events.schema import EXHAUSTED, PARKED, RECOVERED, ROLLUP
from ..schema import HOURLY
from .attempts import is_attempt, is_failed


def hourly(attempts: DataFrame, events: DataFrame) -> DataFrame:
    """Return the series by queue and task (`HOURLY` and ``day``).

    ``attempts`` count in the hour in which they ended. Of the cleaned ``events`` only rollups are read: counts of first
    attempts that succeeded, in the hour in which the rollup began.
    """
    rollups = events.where(F.col("kind") == ROLLUP)
    counted = (
        attempts.where(is_attempt())
        .groupBy(*_key("ended_at"))
        .agg(
            F.count_if(is_failed() & (F.col("attempt") == 0) & (F.col("generation") == 0)).alias("first_attempts"),
            F.count_if(is_failed()).alias("failures"),
            F.count_if(F.col("outcome") == PARKED).alias("parked"),
            F.count_if(F.col("outcome") == RECOVERED).alias("recovered"),
            F.count_if(F.col("outcome") == EXHAUSTED).alias("exhausted"),
        )
    )
    good = rollups.groupBy(*_key("occurred_at")).agg(F.sum("ok_count").alias("first_attempts"))
    both = counted.unionByName(good, allowMissingColumns=True).groupBy("hour", "queue", "task")
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in HOURLY.fieldNames()[3:]]
    return both.agg(*sums).withColumn("day", F.to_date("hour"))


def _key(time: str) -> list[Column]:
    return [F.date_trunc("hour", time).alias("hour"), F.col("queue"), F.col("task")]
