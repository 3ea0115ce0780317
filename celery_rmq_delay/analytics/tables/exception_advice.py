"""The table ``exception_advice``: exceptions that no retry helps, and those that need no long tier."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...events.schema import EXHAUSTED, RECOVERED
from ..schema import EXCEPTION_ADVICE
from .aggregation import first_runs, has_run
from .outcomes import wilson

#: Kinds of advice.
GIVE_UP, FEWER_TIERS = "give_up", "fewer_tiers"

#: Advice needs so many failures, on so many days: one outage has one exception.
_LEAST_FAILURES, _LEAST_DAYS = 100, 3

#: Most rows of the table, those with the most failures.
_MOST_ROWS = 200

_KEY = ("queue", "task", "exception_type")


def exception_advice(episodes: DataFrame, tolerance: float) -> DataFrame:
    """Return `EXCEPTION_ADVICE` of `EPISODES`: a row for each exception of a task about which there is advice.

    ``give_up``: no failure with this exception has recovered, so add it to ``give_up_on``; ``retries`` and
    ``wasted_ms`` are what that would have saved. ``fewer_tiers``: all have recovered, within ``longest_s``, so the
    tiers ``needless_ms`` were never used, also not by tasks that still wait or were discarded; there was one ladder,
    and at most ``tolerance`` of failures can need more (95 %). Both need 100 failures, on 3 days. ``share_low`` and
    ``share_high``: the 95 % interval of the share that recovers. The exception is that of the first failure.
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
        F.max(F.when(is_recovered, F.col("failed_attempts"))).alias("most_retries"),
        F.sum(F.when(is_ended, failed_retries)).alias("retries"),
        F.sum(F.when(is_ended, of_retries)).alias("wasted_ms"),
    )
    found = (
        by_day.groupBy(*_KEY)
        .agg(
            F.sum("failures").alias("failures"),
            F.sum("recovered").alias("recovered"),
            F.countDistinct(F.when(F.col("failures") > 0, F.col("failed_on"))).alias("days"),
            F.countDistinct("ladder_ms").alias("ladders"),
            F.coalesce(F.max("most_of_others"), F.lit(0)).alias("most_of_others"),
            F.max("longest_s").alias("longest_s"),
            F.max("most_retries").alias("most_retries"),
            F.sum("retries").alias("retries"),
            F.sum("wasted_ms").cast("long").alias("wasted_ms"),
            F.max_by("ladder_ms", F.struct("last_failed_at", "ladder_ms")).alias("ladder_ms"),
        )
        .where((F.col("failures") >= _LEAST_FAILURES) & (F.col("days") >= _LEAST_DAYS))
    )
    low, high = wilson(F.col("recovered"), F.col("failures"))
    is_short = (
        (F.col("recovered") == F.col("failures"))
        & (low >= 1 - tolerance)
        & (F.col("most_of_others") <= F.col("most_retries"))
        & (F.col("ladders") == 1)
        & (_unused() > 0)
    )
    needless = F.slice("ladder_ms", F.col("most_retries") + 1, F.greatest(_unused(), F.lit(0)))
    kind = F.when((F.col("recovered") == 0) & (F.col("retries") > 0), GIVE_UP).when(is_short, FEWER_TIERS)
    advised = found.withColumns({"kind": kind, "share_low": low, "share_high": high}).where(F.col("kind").isNotNull())
    is_of_tiers = F.col("kind") == FEWER_TIERS
    shown = advised.withColumns(
        {
            "needless_ms": F.when(is_of_tiers, needless),
            "longest_s": F.when(is_of_tiers, F.col("longest_s")),
            "retries": F.when(~is_of_tiers, F.col("retries")),
            "wasted_ms": F.when(~is_of_tiers, F.col("wasted_ms")),
        }
    )
    return shown.select(*EXCEPTION_ADVICE.fieldNames()).orderBy(F.desc("failures"), *_KEY).limit(_MOST_ROWS)


def _unused() -> Column:
    """Return how many tiers of the ladder no failure needed."""
    return F.size("ladder_ms") - F.col("most_retries")
