"""The table ``exception_advice``: exceptions that no retry helps, and those that need no long tier."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...events.schema import EXHAUSTED, RECOVERED
from ...history.tables import FEWER_TIERS, GIVE_UP
from ..estimate.options import Options
from ..schema import EXCEPTION_ADVICE
from .aggregation import counted_intervals, first_runs, has_run, intervals_of, revived, spread
from .outcomes import wilson

#: Advice needs this many failures, on this many days: a single outage often has a single exception.
_LEAST_FAILURES, _LEAST_DAYS = 100, 3

#: Failures that may have ended within these seconds count as one outage. Shorter than for the curves: advice on fewer
#: tiers is about failures that end within minutes, and many of these are unrelated.
_CLUSTER_S = 600

#: Most rows of the table, those with the most failures.
_MOST_ROWS = 200

_KEY = ("queue", "task", "exception_type")


def exception_advice(episodes: DataFrame, options: Options) -> DataFrame:
    """Return `EXCEPTION_ADVICE` of `EPISODES`: a row for each exception of a task about which there is advice.

    ``give_up``: no failure with this exception has recovered, the last attempt came after ``longest_s``, and no
    exhausted task has recovered when it was replayed; ``retries`` and ``wasted_ms`` are what giving up at once would
    have saved. ``fewer_tiers``: all have recovered, within ``longest_s``, so the tiers ``needless_ms`` were never used,
    also not by tasks that still wait or were discarded; there was one ladder, and at most
    `Options.recovery_tolerance` of failures can need more (95 %). Both need 100 failures, on 3 days. ``share_low`` and
    ``share_high``: the 95 % interval of the share that recovers, from as many observations as there are outages of
    equal size (`by_outage`). The exception is that of the first failure.
    """
    known = first_runs(episodes).where(F.col("exception_type").isNotNull() & has_run())
    is_ended = F.col("outcome").isin(RECOVERED, EXHAUSTED)
    is_recovered = F.col("outcome") == RECOVERED
    # Every failed attempt but the first one was a retry, and so was the successful one.
    failed_retries = F.col("failed_attempts") - 1
    of_retries = F.col("wasted_ms") * failed_retries / F.greatest(F.col("failed_attempts"), F.lit(1))
    # By day and ladder first: Spark would sort all failures to find the ladder of the last one, and to count days.
    by_day = known.groupBy(*_KEY, "ladder_ms", F.to_date("first_failed_at").alias("failed_on")).agg(
        F.count_if(is_ended).alias("failures"),
        F.count_if(is_recovered).alias("recovered"),
        F.max("first_failed_at").alias("last_failed_at"),
        # Tasks that still wait, or were discarded, may need more retries than those that recovered.
        F.max(F.when(~is_ended, F.col("failed_attempts"))).alias("most_of_others"),
        F.max("high_seconds").alias("longest_s"),
        F.max("low_seconds").alias("last_s"),
        F.max(F.when(is_recovered, F.col("failed_attempts"))).alias("most_retries"),
        F.sum(F.when(is_ended, failed_retries)).alias("retries"),
        F.sum(F.when(is_ended, of_retries)).alias("wasted_ms"),
    )
    found = (
        by_day.groupBy(*_KEY)
        .agg(
            *[F.sum(name).alias(name) for name in ("failures", "recovered", "retries")],
            *[F.max(name).alias(name) for name in ("longest_s", "last_s", "most_retries")],
            F.countDistinct(F.when(F.col("failures") > 0, F.col("failed_on"))).alias("days"),
            F.countDistinct("ladder_ms").alias("ladders"),
            F.coalesce(F.max("most_of_others"), F.lit(0)).alias("most_of_others"),
            F.sum("wasted_ms").cast("long").alias("wasted_ms"),
            F.max_by("ladder_ms", F.struct("last_failed_at", "ladder_ms")).alias("ladder_ms"),
        )
        .where((F.col("failures") >= _LEAST_FAILURES) & (F.col("days") >= _LEAST_DAYS))
    )
    found = found.join(_outages(known, options), list(_KEY), "left").join(revived(episodes, _KEY), list(_KEY), "left")
    trials = F.least(F.coalesce("outages", F.lit(1.0)), F.col("failures"))
    low, high = wilson(F.col("recovered") / F.col("failures") * trials, trials)
    unused = F.size("ladder_ms") - F.col("most_retries")
    is_short = (
        (F.col("recovered") == F.col("failures"))
        & (low >= 1 - options.recovery_tolerance)
        & (F.col("most_of_others") <= F.col("most_retries"))
        & (F.col("ladders") == 1)
        & (unused > 0)
    )
    needless = F.slice("ladder_ms", F.col("most_retries") + 1, F.greatest(unused, F.lit(0)))
    is_useless = (F.col("recovered") == 0) & (F.col("retries") > 0) & F.col("revived").isNull()
    kind = F.when(is_useless, GIVE_UP).when(is_short, FEWER_TIERS)
    advised = found.withColumns({"kind": kind, "share_low": low, "share_high": high}).where(F.col("kind").isNotNull())
    is_of_tiers = F.col("kind") == FEWER_TIERS
    shown = advised.withColumns(
        {
            "needless_ms": F.when(is_of_tiers, needless),
            "longest_s": F.when(is_of_tiers, F.col("longest_s")).otherwise(F.col("last_s")),
            "retries": F.when(~is_of_tiers, F.col("retries")),
            "wasted_ms": F.when(~is_of_tiers, F.col("wasted_ms")),
        }
    )
    return shown.select(*EXCEPTION_ADVICE.fieldNames()).orderBy(F.desc("failures"), *_KEY).limit(_MOST_ROWS)


def _outages(known: DataFrame, options: Options) -> DataFrame:
    """Return by exception how many outages of equal size would be as informative as its failures."""
    fine = replace(options, cluster_s=_CLUSTER_S)

    def of_exception(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame([[*key, outages_of(rows, fine)]], columns=[*_KEY, "outages"])

    counted = spread(counted_intervals(known, list(_KEY), fine), *_KEY)
    schema = "queue string, task string, exception_type string, outages double"
    return counted.groupBy(*_KEY).applyInPandas(of_exception, schema)


def outages_of(rows: pd.DataFrame, options: Options) -> float:
    """Return how many outages of equal size would be as informative as the failures of one group."""
    intervals = intervals_of(rows, options)
    return intervals.effective(intervals.count > 0)
