"""The table ``incidents``: bursts of failures of queues, tasks and exceptions, each compared with its usual failures.

Spark counts the failed first attempts of each day by minute and source. Each day is then evaluated together with the
two days before it (`of_day`), and incidents are joined over midnight (`over_midnight`). What the table shows of an
incident comes from the failed attempts in its scope, retries included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import date, timedelta
from itertools import product

import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...events.schema import RECOVERED
from ..schema import INCIDENTS
from .aggregation import spread
from .attempts import is_failed
from .bursts import MINUTES, SOURCE, Bursts
from .merging import Incident, of_day, over_midnight
from .outcomes import minute_of

DEFAULT = Bursts()

#: Exceptions of tasks that a day has series for, and fingerprints of them: those with the most failures. Failures with
#: another fingerprint, or with one that is rare that day, are a series without a fingerprint. So the counts of a day
#: are of bounded size.
MOST_SOURCES = 1_000
LEAST_OF_FINGERPRINT = 10

_SCOPE = SOURCE[:3]
#: The columns of `Incident`, and those of `scopes_of`.
_FOUND = (
    "first long, last long, evidence double, skip int,"
    " scope array<struct<queue: string, task: string, exception_type: string>>,"
    " failed double, expected double, attempts double"
)
_SCOPES = (
    "incident long, day date, of_day long, first long, last long, skip int,"
    " queue string, task string, exception_type string, excess long, failure_rate double, usual_rate double"
)


def failed_firsts(attempts: DataFrame) -> DataFrame:
    """Count the failed first attempts by minute and `SOURCE`; ``of_day``: days since the epoch."""
    firsts = attempts.where(is_failed() & (F.col("attempt") == 0))
    source = [F.coalesce(name, F.lit("")).alias(name) for name in SOURCE]
    counted = firsts.groupBy(minute_of("ended_at").alias("minute"), *source).agg(F.count("*").alias("failed"))
    return counted.withColumn("of_day", _day_of("minute"))


def days_of(counted: DataFrame) -> set[date]:
    """Return the days that have failed first attempts."""
    return {_date(row["of_day"]) for row in counted.select("of_day").distinct().collect()}


def find(counted: DataFrame, ok: DataFrame, bursts: Bursts = DEFAULT) -> list[Incident]:
    """Return the incidents in the counts of `failed_firsts`: at most `MOST_INCIDENTS` of each day."""
    series = spread(series_by_day(counted, ok), "of_day")
    rows = series.groupBy("of_day").applyInPandas(lambda some: _found(some, bursts), _FOUND).collect()
    parts = [Incident(**{**row.asDict(), "scope": frozenset(map(tuple, row["scope"]))}) for row in rows]
    return over_midnight(parts, bursts)


def series_by_day(counted: DataFrame, ok: DataFrame) -> DataFrame:
    """Return the rows of `counts_of` for each day: ``of_day`` has its own minutes and those of the two days before."""
    scopes, prints = _frequent(counted, _SCOPE, 1), _frequent(counted, SOURCE, LEAST_OF_FINGERPRINT)
    none = F.lit("")
    named = prints.withColumn("named", F.col("fingerprint"))
    failed = (
        _thrice(counted)
        .join(scopes, ["of_day", *_SCOPE], "left_semi")
        .join(named, ["of_day", *SOURCE], "left")
        .groupBy("minute", "of_day", *_SCOPE, F.coalesce("named", none).alias("fingerprint"))
        .agg(F.sum("failed").alias("failed"), F.lit(0).cast("long").alias("ok"))
    )
    # A day without any failure may be one that is not in the output: it is no evidence that nothing failed.
    known = ok.withColumn("of_day", _day_of("minute")).join(counted.select("of_day").distinct(), "of_day", "left_semi")
    pairs = scopes.select("of_day", "queue", "task").distinct()
    values = {"exception_type": none, "fingerprint": none, "failed": F.lit(0).cast("long")}
    good = _thrice(known).join(pairs, ["of_day", "queue", "task"], "left_semi").withColumns(values)
    return failed.unionByName(good)


def _thrice(minutes: DataFrame) -> DataFrame:
    """Return the minutes for their own day and for the next two."""
    return minutes.withColumn("of_day", F.explode(F.array(*[F.col("of_day") + later for later in range(3)])))


def _frequent(counted: DataFrame, key: Sequence[str], least: int) -> DataFrame:
    """Return the combinations of each day with the most failures, at least ``least``: at most `MOST_SOURCES`."""
    totals = counted.groupBy("of_day", *key).agg(F.sum("failed").alias("total")).where(F.col("total") >= least)
    rank = F.row_number().over(Window.partitionBy("of_day").orderBy(F.desc("total"), *key))
    return totals.withColumn("rank", rank).where(F.col("rank") <= MOST_SOURCES).select("of_day", *key)


def _found(rows: pd.DataFrame, bursts: Bursts) -> pd.DataFrame:
    """Return the incidents of one day, in a worker of Spark."""
    found = of_day(rows, int(rows["of_day"].iloc[0]) * MINUTES, bursts)
    values = [{**vars(each), "scope": sorted(each.scope)} for each in found]
    return pd.DataFrame(values, columns=[each.name for each in fields(Incident)])


def _scopes(number: int, found: Incident) -> Iterator[tuple[object, ...]]:
    """Yield the rows of an incident: for each day of it, one for each queue, task and exception."""
    rates = [part / found.attempts if found.attempts else None for part in (found.failed, found.expected)]
    span = found.first, found.last, found.skip
    for day, scope in product(range(found.day, found.last // MINUTES + 1), sorted(found.scope)):
        yield (number, _date(found.day), day, *span, *scope, round(found.excess), *rates)


def scopes_of(spark: SparkSession, found: Sequence[Incident]) -> DataFrame:
    """Return the scopes of incidents, by the number of the ``incident`` in ``found``."""
    return spark.createDataFrame([row for number, each in enumerate(found) for row in _scopes(number, each)], _SCOPES)


def failures_in(attempts: DataFrame, scopes: DataFrame) -> DataFrame:
    """Return the failed attempts in the scopes of incidents (`scopes_of`), by the number of the ``incident``.

    ``start``: the end of a first attempt in the minute in which the incident began, else null.
    ``task_number`` and ``run`` stand for a task's id, and for this id with a generation: hashes of 64 bits, of which
    those of a billion tasks differ with a probability of 97 %. Numbers are moved and compared much faster than texts.
    """
    source = [F.coalesce(name, F.lit("")).alias(name) for name in _SCOPE]
    failed = attempts.where(is_failed()).select(
        minute_of("ended_at").alias("minute"),
        *source,
        *("ended_at", "runtime_ms"),
        (F.col("attempt") == 0).alias("is_first"),
        F.xxhash64("task_id").alias("task_number"),
        _run(),
    )
    # By day, too: otherwise each failure would be joined with all incidents of its task.
    inside = failed.withColumn("of_day", _day_of("minute")).join(F.broadcast(scopes), ["of_day", *_SCOPE])
    start = F.when(F.col("is_first") & (F.col("minute") == F.col("first")), F.col("ended_at")).alias("start")
    columns = ("incident", "minute", start, "ended_at", "runtime_ms", "task_number", "run")
    return inside.where(F.col("minute").between(F.col("first"), F.col("last"))).select(*columns)


def described(failed: DataFrame, episodes: DataFrame, scopes: DataFrame) -> DataFrame:
    """Return the incidents with these scopes (`INCIDENTS` and ``day``, on which they began).

    ``failed``: `failures_in` them. ``episodes``: the failure episodes that ended on their days or the next ones.
    ``recovered_share`` is the share of episodes that recovered, of those with a failure in the incident that ended by
    the end of the day after its begin; null if there are none.
    """
    # By start first: Spark would sort all failures to collect the starts.
    by_start = failed.groupBy("incident", "minute", "start").agg(
        F.count("*").alias("failures"),
        F.min("ended_at").alias("earliest"),
        F.max("ended_at").alias("ended_at"),
        F.coalesce(F.sum("runtime_ms"), F.lit(0)).alias("wasted_ms"),
    )
    repeated = F.array_repeat("start", F.col("failures").cast("int"))
    starts = F.flatten(F.collect_list(F.when(F.col("start").isNotNull(), repeated)))
    by_minute = by_start.groupBy("incident", "minute").agg(
        F.sum("failures").alias("failures"),
        F.min("earliest").alias("earliest"),
        F.max("ended_at").alias("ended_at"),
        F.sort_array(starts).alias("starts"),
        F.sum("wasted_ms").alias("wasted_ms"),
    )
    skips = F.broadcast(scopes.select("incident", "skip").distinct())
    whole = (
        by_minute.join(skips, "incident")
        .groupBy("incident")
        .agg(
            F.coalesce(F.max(F.get("starts", F.col("skip"))), F.min("earliest")).alias("started_at"),
            F.max("ended_at").alias("ended_at"),
            F.max("failures").alias("peak_per_minute"),
            F.sum("failures").alias("failures"),
            F.sum("wasted_ms").alias("wasted_ms"),
        )
    )
    named = scopes.groupBy("incident", "day", "excess", "failure_rate", "usual_rate").agg(
        _texts("queue").alias("queues"), _texts("task").alias("tasks"), _texts("exception_type").alias("exceptions")
    )
    touched = _touched(failed, episodes, scopes.select("incident", F.col("day").alias("began_on")).distinct())
    share = F.when(F.col("ended") > 0, F.col("recovered") / F.col("ended"))
    complete = named.join(whole, "incident").join(touched, "incident").withColumn("recovered_share", share)
    return complete.select(*INCIDENTS.fieldNames(), "day")


def _touched(failed: DataFrame, episodes: DataFrame, began: DataFrame) -> DataFrame:
    """Return by incident how many tasks failed in it, and how many of their episodes ended and recovered in time."""
    ended_on = F.min("day").alias("ended_on")
    recovered_on = F.min(F.when(F.col("outcome") == RECOVERED, F.col("day"))).alias("recovered_on")
    ends = episodes.groupBy(_run()).agg(ended_on, recovered_on)
    by_episode = (
        failed.select("incident", "task_number", "run")
        .distinct()
        .join(ends.hint("shuffle_hash"), "run", "left")
        .join(F.broadcast(began), "incident")
    )
    in_time = [
        F.count_if(F.col(f"{name}_on") <= F.date_add("began_on", 1)).alias(name) for name in ("ended", "recovered")
    ]
    by_task = by_episode.groupBy("incident", "task_number").agg(*in_time)
    return by_task.groupBy("incident").agg(
        F.count("*").alias("tasks_touched"), F.sum("ended").alias("ended"), F.sum("recovered").alias("recovered")
    )


def _run() -> Column:
    return F.xxhash64("task_id", "generation").alias("run")


def _date(day: int) -> date:
    return date(1970, 1, 1) + timedelta(days=day)


def _day_of(minute: str) -> Column:
    return F.floor(F.col(minute) / MINUTES)


def _texts(name: str) -> Column:
    return F.array_sort(F.array_remove(F.collect_set(name), ""))
