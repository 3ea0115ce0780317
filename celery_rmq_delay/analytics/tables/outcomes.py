"""The tables that are sums of counts: ``tier_outcomes``, ``failure_groups`` and ``hourly``."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ..estimate.shares import Z_95
from ..schema import FAILURE_GROUPS, HOURLY, TIER_OUTCOMES
from .counts import FAILURES, HOURS, SUCCESSES, WAITS, of

#: With fewer hours than this, their variance is not known.
_ENOUGH_HOURS = 10


def tier_outcomes(counts: DataFrame) -> DataFrame:
    """Return the outcomes of waits (`TIER_OUTCOMES` and ``day``), under the day on which the next attempt ended.

    ``counts``: those of the attempts. ``parked`` counts the tasks (and replays) whose wait ended with an attempt; tasks
    that were discarded while they waited are left out. A task that waits in a tier again and again counts once a day,
    with the last outcome of that day: one that is retried without a limit would outweigh all others. ``wasted_ms`` is
    the sum of all its attempts. ``rate_low`` and ``rate_high`` are from ``independent`` tasks. Exact delays (``tier``
    null) have their ``delay_ms`` rounded down to two digits.
    """
    key = "day", *TIER_OUTCOMES.fieldNames()[:5]
    sums = [F.sum(name).alias(name) for name in ("parked", "recovered", "exhausted", "wasted_ms")]
    hourly = of(counts, WAITS).groupBy(*key, "minute").agg(*sums)
    n, good = F.col("parked").cast("double"), F.col("recovered").cast("double")
    squares = [F.sum(each).alias(name) for name, each in (("nn", n * n), ("ng", n * good), ("gg", good * good))]
    counted = hourly.groupBy(*key).agg(*sums, *squares, F.count("*").alias("hours"))
    found = counted.withColumns({"rate": F.col("recovered") / F.col("parked"), "independent": _independent()})
    low, high = wilson(F.col("rate") * F.col("independent"), F.col("independent"))
    return found.withColumns({"rate_low": low, "rate_high": high}).select(*TIER_OUTCOMES.fieldNames(), "day")


def _independent() -> Column:
    """Return how many independent tasks would vary as much as the tasks of a day, from those of its hours.

    It is the variance between clusters of a share (Cochran, W. G. (1977): Sampling Techniques, section 3.12), with the
    hours as clusters; it is from few hours, and if all tasks have the same result, not known: then each hour is one
    task, whatever its size (Kish, L. (1965)).
    """
    share, every = F.col("recovered") / F.col("parked"), F.col("parked").cast("double")
    spread = F.col("gg") - 2 * share * F.col("ng") + share * share * F.col("nn")
    hours = F.col("hours")
    variance = spread / (every * every) * hours / (hours - 1)
    least = every * every / F.col("nn")
    is_known = (hours >= _ENOUGH_HOURS) & (variance > 0) & (share > 0) & (share < 1)
    return F.when(is_known, F.least(F.greatest(share * (1 - share) / variance, least), every)).otherwise(least)


def wilson(successes: Column, trials: Column) -> tuple[Column, Column]:
    """Return the ends of the 95 % score interval of a share (Wilson 1927); ``trials`` is above 0."""
    share, weight = successes / trials, Z_95**2 / trials
    centre = share + weight / 2
    margin = F.sqrt(weight * (share * (1 - share) + weight / 4))
    return (
        F.greatest((centre - margin) / (1 + weight), F.lit(0.0)),
        F.least((centre + margin) / (1 + weight), F.lit(1.0)),
    )


def failure_groups(counts: DataFrame) -> DataFrame:
    """Return the groups of each day (`FAILURE_GROUPS` and ``day``); failures without a fingerprint are left out.

    ``counts``: those of the attempts. Exception and message are those of the first failure of the day, and of several
    at the same time the first ones in order, so that every run has the same.
    """
    sums = [F.sum(name).alias(name) for name in ("failures", "exhausted", "tasks_touched")]
    first = F.min(F.struct("first_seen", "exception_type", "exception_message")).alias("first")
    tasks, last = F.sort_array(F.collect_set("task")).alias("tasks"), F.max("last_seen").alias("last_seen")
    groups = of(counts, FAILURES).groupBy("day", "fingerprint").agg(*sums, first, tasks, last)
    return groups.select("*", "first.*").select(*FAILURE_GROUPS.fieldNames(), "day")


def hourly(counts: DataFrame) -> DataFrame:
    """Return `HOURLY` and ``day``: attempts in the hour in which they ended, successes where their rollup began."""
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
