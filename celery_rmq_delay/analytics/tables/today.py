"""Today's ladder of a queue, from its failure episodes."""

from __future__ import annotations

import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ..estimate.ladders import Today
from .aggregation import first_runs, has_run, ladder_id

#: Hours of failures that determine today's ladder: the last one with a failure, and those before it.
_LATEST_HOURS = 24


def todays_ladders(episodes: DataFrame, keys: list[str]) -> DataFrame:
    """Return the ladder of each group of `EPISODES`, for `today_of`.

    Columns: keys, ``ladder`` (`ladder_id`), ``tiers_ms``, ``max_retries``, ``retries``. Tiers and ``max_retries`` are
    the most frequent ones of the last day with failures; of equally frequent ones the first in order. ``retries``: the
    most that were observed with them. Tasks that never ran are ignored, and so are replays.
    """
    valid = first_runs(episodes).where((F.size("ladder_ms") > 0) & has_run())
    ladder = ("ladder_ms", "max_retries")
    hour = F.floor(F.unix_timestamp("first_failed_at") / 3600)
    hourly = valid.groupBy(*keys, *ladder, hour.alias("hour")).agg(
        F.count("*").alias("count"), F.max(_retries()).alias("retries")
    )
    last_hour = F.max("hour").over(Window.partitionBy(*keys))
    frequent = (
        hourly.withColumn("last_hour", last_hour)
        .where(F.col("hour") > F.col("last_hour") - _LATEST_HOURS)
        .groupBy(*keys, *ladder)
        .agg((-F.sum("count")).alias("rarity"), F.max("retries").alias("retries"))
        .groupBy(*keys)
        .agg(F.min(F.struct("rarity", *ladder, "retries")).alias("found"))
    )
    found = {
        "ladder": ladder_id("found."),
        "tiers_ms": F.col("found")["ladder_ms"],
        "max_retries": F.col("found")["max_retries"],
        "retries": F.col("found")["retries"],
    }
    # New columns: otherwise Spark cannot distinguish them from those of the failure episodes, with which they are
    # cogrouped.
    renewed = [F.col(name).alias(name) for name in keys]
    return frequent.select(*renewed, *[column.alias(name) for name, column in found.items()])


def today_of(rows: pd.DataFrame) -> Today:
    """Return the result of `todays_ladders` for one group."""
    if rows.empty:
        return Today()
    row = rows.iloc[0]
    most = None if pd.isna(row["max_retries"]) else int(row["max_retries"])
    ladder = tuple(int(each) for each in row["tiers_ms"])
    return Today.of(ladder, most, int(row["retries"]))


def _retries() -> Column:
    """Return how many retries of a failure episode are known to have ended."""
    return F.col("failed_attempts") - F.when(F.col("high_seconds").isNotNull(), 0).otherwise(1)
