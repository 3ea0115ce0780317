"""The table ``recovery_curve``: the share of failures that have ended by time t, per task and per exception."""

from __future__ import annotations

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ..estimate.options import Options
from ..estimate.shares import shares
from ..schema import RECOVERY_CURVE
from .aggregation import INTERVAL, counted_intervals, intervals_of

_SCOPES = {"task": "task", "exception": "exception_type"}


def recovery_curve(episodes: DataFrame, options: Options) -> DataFrame:
    """Return `RECOVERY_CURVE` of `EPISODES`: for each task and exception, its points up to the last inspection.

    ``recovered_share`` is the share that has ended by then *at the least*: at times at which no attempt ended it keeps
    the value of the last inspection, and ``share_high`` reaches up to the value of the next. The 95 % interval comes
    from a bootstrap of whole outages, and is null if there are fewer than `Options.min_clusters` of them. There are no
    rows after the last inspection. ``episodes`` counts those with a retry that ended, ``censored`` those whose end was
    not observed.
    """

    def of_name(rows: pd.DataFrame) -> pd.DataFrame:
        return _points(rows, options)

    names = F.explode(
        F.array(
            *[F.struct(F.lit(scope).alias("scope"), F.col(column).alias("name")) for scope, column in _SCOPES.items()]
        )
    )
    counted = counted_intervals(episodes, list(_SCOPES.values()), options)
    return (
        counted.select(names.alias("of"), *INTERVAL, "count")
        .select("of.scope", "of.name", *INTERVAL, "count")
        .where(F.col("name").isNotNull())
        .groupBy("scope", "name")
        .applyInPandas(of_name, RECOVERY_CURVE)
    )


def _points(rows: pd.DataFrame, options: Options) -> pd.DataFrame:
    intervals = intervals_of(rows, options)
    found = shares(intervals, options)
    low, high = found.interval(found.least, found.most)
    points = slice(1, found.horizon + 1)
    return pd.DataFrame(
        {
            "scope": rows["scope"].iloc[0],
            "name": rows["name"].iloc[0],
            "t_seconds": options.grid.times[points],
            "recovered_share": found.least[0, points],
            # A quantile of the rounds can be on the wrong side of the estimate by chance.
            "share_low": np.minimum(low, found.least[0])[points],
            "share_high": np.maximum(high, found.most[0])[points],
            "episodes": intervals.episodes,
            "censored": intervals.censored,
        }
    )
