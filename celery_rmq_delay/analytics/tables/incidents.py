"""The table ``incidents``: bursts of failed attempts, over all queues and tasks.

A minute is hot if it has many failed attempts, and many more than the day's median minute. Hot minutes close to each
other are one incident, with all failures from the first of them to the last. Each day is computed separately, so its
result does not depend on the other days of a run; an incident that spans midnight (UTC) becomes two.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...events.schema import RECOVERED
from ...exceptions import SettingsError
from ..schema import INCIDENTS
from .attempts import ENDS, Keep, is_failed, not_kept
from .outcomes import wasted_ms

_MINUTES_OF_A_DAY = 1440


@dataclass(frozen=True, kw_only=True)
class Bursts:
    """Definition of an incident: minutes of at least ``threshold`` failures, and ``factor`` times the median minute.

    Hot minutes at most ``gap_minutes`` apart belong to one incident. Raises `SettingsError`.
    """

    threshold: int = 10
    factor: float = 5.0
    gap_minutes: int = 10

    def __post_init__(self) -> None:
        for name, least in (("threshold", 1), ("factor", 0), ("gap_minutes", 1)):
            if not getattr(self, name) >= least:
                raise SettingsError(f"Bursts.{name}", getattr(self, name), f"Use a number from {least} on.")


DEFAULT = Bursts()


def incidents(attempts: DataFrame, bursts: Bursts = DEFAULT, keep: Keep = not_kept) -> DataFrame:
    """Return the incidents of each day (`INCIDENTS` and ``day``).

    ``recovered_share`` is the share among touched tasks (and replays) that ended by the end of that day; null if none
    did.
    """
    burning = keep(_burning(_minutes(attempts), bursts))
    whole = burning.groupBy("day", "incident").agg(
        F.min("started_at").alias("started_at"),
        F.max("ended_at").alias("ended_at"),
        _texts("tasks"),
        _texts("exceptions"),
        F.max("failures").alias("peak_per_minute"),
        F.sum("failures").alias("failures"),
        F.sum("wasted_ms").alias("wasted_ms"),
    )
    touched = _touched(attempts, burning.select("day", "minute", "incident"))
    share = F.when(F.col("ended") > 0, F.col("recovered") / F.col("ended"))
    found = whole.join(touched, ["day", "incident"]).withColumn("recovered_share", share)
    return found.select(*INCIDENTS.fieldNames(), "day")


def _minutes(attempts: DataFrame) -> DataFrame:
    """Return the minutes that have failed attempts: at most 1,440 rows a day."""
    failed = attempts.where(is_failed())
    by_task = failed.groupBy("day", _minute().alias("minute"), "task", "exception_type").agg(
        F.count("*").alias("failures"),
        F.min("ended_at").alias("started_at"),
        F.max("ended_at").alias("ended_at"),
        wasted_ms(),
    )
    return by_task.groupBy("day", "minute").agg(
        F.sum("failures").alias("failures"),
        F.sum("wasted_ms").alias("wasted_ms"),
        F.min("started_at").alias("started_at"),
        F.max("ended_at").alias("ended_at"),
        F.collect_set("task").alias("tasks"),
        F.collect_set("exception_type").alias("exceptions"),
    )


def _burning(minutes: DataFrame, bursts: Bursts) -> DataFrame:
    """Return the minutes of incidents, with the number of the ``incident`` in its day."""
    day = Window.partitionBy("day")
    # The 720th of the day's minutes ordered by failures; minutes without failures come first and have no row.
    place = F.count("*").over(day) - _MINUTES_OF_A_DAY // 2
    ranked = minutes.withColumns(
        {"rank": F.row_number().over(day.orderBy("failures", "minute")), "median_rank": place},
    )
    median = F.coalesce(F.max(F.when(F.col("rank") == F.col("median_rank"), F.col("failures"))).over(day), F.lit(0))
    hot = (F.col("failures") >= bursts.threshold) & (F.col("failures") >= median * bursts.factor)
    hot_minute = F.when(F.col("is_hot"), F.col("minute"))
    before = day.orderBy("minute").rowsBetween(Window.unboundedPreceding, -1)
    since = F.col("minute") - F.col("hot_before")
    is_start = F.col("is_hot") & (F.col("hot_before").isNull() | (since > bursts.gap_minutes))
    numbered = (
        ranked.withColumn("is_hot", hot)
        .withColumn("hot_before", F.last(hot_minute, ignorenulls=True).over(before))
        .withColumn("incident", F.count_if(is_start).over(day.orderBy("minute")))
        .withColumn("last_hot", F.max(hot_minute).over(Window.partitionBy("day", "incident")))
    )
    return numbered.where((F.col("incident") > 0) & (F.col("minute") <= F.col("last_hot")))


def _touched(attempts: DataFrame, burning: DataFrame) -> DataFrame:
    """Return by incident how many tasks failed in it, and how many of their episodes ended and recovered that day."""
    ends = F.col("outcome").isin(*ENDS)
    near = (
        attempts.where(is_failed() | ends)
        .select("day", "task_id", "generation", "outcome", _minute().alias("minute"))
        .join(F.broadcast(burning), ["day", "minute"], "left")
        .withColumn("incident", F.when(is_failed(), F.col("incident")))
        .where(F.col("incident").isNotNull() | ends)
        .repartition("task_id")  # serves failure episodes and tasks
    )
    by_episode = near.groupBy("task_id", "day", "generation").agg(
        F.collect_set("incident").alias("touched"),
        F.max(ends.cast("int")).alias("ended"),
        F.max((F.col("outcome") == RECOVERED).cast("int")).alias("recovered"),
    )
    by_task = (
        by_episode.withColumn("incident", F.explode("touched"))
        .groupBy("task_id", "day", "incident")
        .agg(F.sum("ended").alias("ended"), F.sum("recovered").alias("recovered"))
    )
    return by_task.groupBy("day", "incident").agg(
        F.count("*").alias("tasks_touched"),
        F.sum("ended").alias("ended"),
        F.sum("recovered").alias("recovered"),
    )


def _minute() -> Column:
    """Return the minute in which an attempt ended, as minutes since the epoch."""
    return F.floor(F.unix_micros("ended_at") / 60_000_000)


def _texts(name: str) -> Column:
    return F.array_sort(F.array_distinct(F.flatten(F.collect_list(name)))).alias(name)
