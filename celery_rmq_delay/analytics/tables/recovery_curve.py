"""The table ``recovery_curve``: the share of failures that have ended by time t, per task and per exception."""

from __future__ import annotations

import pandas as pd
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...history.tables import EXCEPTION, TASK
from ..estimate.options import Options
from ..estimate.shares import shares
from ..schema import RECOVERY_CURVE
from .aggregation import INTERVAL, counted_intervals, intervals_of, spread

_SCOPES = {TASK: "task", EXCEPTION: "exception_type"}

#: Most curves of each scope.
_MOST = 100


def recovery_curve(episodes: DataFrame, options: Options) -> DataFrame:
    """Return `RECOVERY_CURVE` of `EPISODES`: for each task and exception, its points up to the last attempt.

    ``recovered_share`` is the estimate of the share that has ended by then. Between the times at which attempts ended,
    failures are taken to end evenly over the logarithm of time; ``share_low`` and ``share_high`` reach from the share
    at the time before to that at the time after. They are a 95 % interval, and null if there are fewer than
    `Options.min_clusters` outages. There are no rows after the last attempt. ``episodes`` counts those with a retry
    that ended, ``censored`` those whose end was not observed. Only the 100 most frequent tasks and exceptions have a
    curve.
    """

    def of_name(rows: pd.DataFrame) -> pd.DataFrame:
        return _points(rows, options)

    names = F.explode(
        F.array(
            *[F.struct(F.lit(scope).alias("scope"), F.col(column).alias("name")) for scope, column in _SCOPES.items()]
        )
    )
    counted = (
        counted_intervals(episodes, list(_SCOPES.values()), options)
        .select(names.alias("of"), *INTERVAL, "count", "late_s")
        .select("of.scope", "of.name", *INTERVAL, "count", "late_s")
        .where(F.col("name").isNotNull())
    )
    frequent = counted.join(F.broadcast(_frequent(counted)), ["scope", "name"], "left_semi")
    return spread(frequent, "scope", "name").groupBy("scope", "name").applyInPandas(of_name, RECOVERY_CURVE)


def _frequent(counted: DataFrame) -> DataFrame:
    """Return the tasks and exceptions that have a curve."""
    failures = counted.groupBy("scope", "name").agg(F.sum("count").alias("failures"))
    place = F.row_number().over(Window.partitionBy("scope").orderBy(F.desc("failures"), "name"))
    return failures.withColumn("place", place).where(F.col("place") <= _MOST)


def _points(rows: pd.DataFrame, options: Options) -> pd.DataFrame:
    intervals = intervals_of(rows, options)
    found = shares(intervals, options)
    low, high = found.band()
    points = slice(1, found.horizon + 1)
    return pd.DataFrame(
        {
            "scope": rows["scope"].iloc[0],
            "name": rows["name"].iloc[0],
            "t_seconds": options.grid.times[points],
            "recovered_share": found.likely[0, points],
            "share_low": low[points],
            "share_high": high[points],
            "episodes": intervals.episodes,
            "censored": intervals.censored,
        }
    )
