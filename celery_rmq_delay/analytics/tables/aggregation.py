"""Count failure episodes by intervals between grid cells: the input of the estimate, of bounded size."""

from __future__ import annotations

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ..estimate.options import Options
from ..estimate.outages import by_outage
from ..estimate.shares import Intervals

INTERVAL = ("low", "high", "cluster")


def counted_intervals(episodes: DataFrame, keys: list[str], options: Options) -> DataFrame:
    """Return the intervals of `EPISODES`, one row each: keys, low, high (cells; `Intervals.OPEN`), cluster and count.

    ``cluster`` is the time slot in which the failures began.

    Failure episodes without a retry that ended are left out: they carry no information about how long failures last.
    A failure that ended beyond the grid counts as not observed to end.
    """
    grid = options.grid
    points = grid.points

    def step(seconds: Column) -> Column:
        """Return the number of the nearest point, from 0, rounded as in `Grid.cells`."""
        logarithm = F.log10(F.greatest(seconds, F.lit(grid.first_s)) / F.lit(grid.first_s))
        return F.floor(logarithm * F.lit(grid.per_decade) + F.lit(0.5))

    low, high = F.col("low_seconds"), F.col("high_seconds")
    low_cell = F.when(low > 0, F.least(step(low), F.lit(points - 1)) + 1).otherwise(0)
    is_open = high.isNull() | (step(high) >= points)
    high_cell = F.when(is_open, F.lit(Intervals.OPEN)).otherwise(step(high) + 1)
    cluster = F.floor(F.unix_timestamp("first_failed_at") / F.lit(options.cluster_s))
    return (
        episodes.where((low > 0) | high.isNotNull())
        .select(
            *keys,
            # Both ends in one cell: the failure ended in the step before it.
            F.least(low_cell, high_cell - 1).cast("long").alias("low"),
            high_cell.cast("long").alias("high"),
            F.coalesce(cluster, F.lit(0)).cast("long").alias("cluster"),
        )
        .groupBy(*keys, *INTERVAL)
        .agg(F.count("*").alias("count"))
    )


def intervals_of(rows: pd.DataFrame, options: Options) -> Intervals:
    """Return the rows of one group as intervals by outage, for the estimate."""
    low, high, cluster = (rows[name].to_numpy(dtype="int64") for name in INTERVAL)
    return by_outage(Intervals(low, high, cluster, rows["count"].to_numpy(dtype="float64")), options)
