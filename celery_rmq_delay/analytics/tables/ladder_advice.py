"""The tables of the estimate: ``recovery_curve``, ``ladder_advice``, and ``what_if`` of ladders that the user names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...durations import MAX_TTL_MS
from ...exceptions import SettingsError
from ...history.tables import BACKTEST_FIGURES, EXCEPTION, FIGURES, TASK
from ..estimate.by_attempt import by_attempt
from ..estimate.decision import Decision, decide
from ..estimate.intervals import lacking
from ..estimate.ladders import Summary, Today, summarise
from ..estimate.lateness import early_sentence, lateness_of
from ..estimate.options import Options
from ..estimate.search import Ladder
from ..estimate.shares import shares
from ..schema import LADDER_ADVICE, RECOVERY_CURVE, WHAT_IF
from .aggregation import (
    EXACT,
    INTERVAL,
    counted_intervals,
    first_runs,
    has_run,
    intervals_of,
    ladder_id,
    late_of,
    observed_of,
    revived,
    spread,
)

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
    both = [F.struct(F.lit(scope).alias("scope"), F.col(column).alias("name")) for scope, column in _SCOPES.items()]
    counted = (
        counted_intervals(episodes, list(_SCOPES.values()), options)
        .select(F.explode(F.array(*both)).alias("of"), *INTERVAL, "count", "late_s")
        .select("of.scope", "of.name", *INTERVAL, "count", "late_s")
        .where(F.col("name").isNotNull())
    )
    failures = counted.groupBy("scope", "name").agg(F.sum("count").alias("failures"))
    place = F.row_number().over(Window.partitionBy("scope").orderBy(F.desc("failures"), "name"))
    frequent = failures.withColumn("place", place).where(F.col("place") <= _MOST)
    chosen = spread(counted.join(F.broadcast(frequent), ["scope", "name"], "left_semi"), "scope", "name")
    return chosen.groupBy("scope", "name").applyInPandas(lambda rows: _points(rows, options), RECOVERY_CURVE)


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
    # How many are known to have ended.
    retries = F.col("failed_attempts") - F.when(F.col("high_seconds").isNotNull(), 0).otherwise(1)
    sums = F.count("*").alias("count"), F.max(retries).alias("retries")
    hourly = valid.groupBy(*keys, *ladder, hour.alias("hour")).agg(*sums)
    last_hour = F.max("hour").over(Window.partitionBy(*keys))
    frequent = (
        hourly.withColumn("last_hour", last_hour)
        .where(F.col("hour") > F.col("last_hour") - _LATEST_HOURS)
        .groupBy(*keys, *ladder)
        .agg((-F.sum("count")).alias("rarity"), F.max("retries").alias("retries"))
        .groupBy(*keys)
        .agg(F.min(F.struct("rarity", *ladder, "retries")).alias("found"))
    )
    # New columns: otherwise Spark cannot distinguish them from those of the failure episodes, with which they are
    # cogrouped.
    renewed = [F.col(name).alias(name) for name in keys]
    ladder_ms = F.col("found.ladder_ms").alias("tiers_ms")
    return frequent.select(*renewed, ladder_id("found."), ladder_ms, "found.max_retries", "found.retries")


def today_of(rows: pd.DataFrame) -> Today:
    """Return the result of `todays_ladders` for one group."""
    if rows.empty:
        return Today()
    row = rows.iloc[0]
    most = None if pd.isna(row["max_retries"]) else int(row["max_retries"])
    ladder = tuple(int(each) for each in row["tiers_ms"])
    return Today.of(ladder, most, int(row["retries"]))


#: ``is_whole``: all tasks of the queue. A null task cannot mark it: null keys of the two sides would not match.
_KEYS = ["queue", "is_whole", "task"]

#: With more than this part of the failures retried after exact delays, a ladder does not determine the retries.
_MOSTLY = 0.5
_OF_EXACT = "not enough data: most failures were retried after exact delays (a countdown or an eta), not after tiers"


def ladder_advice(episodes: DataFrame, options: Options) -> DataFrame:
    """Return `LADDER_ADVICE` of `EPISODES`: one row for each queue, and one for each task of it that has enough data.

    The row of a queue is about the tasks that have its ladder. The only task of a queue has no row of its own.
    ``current_*`` are counts of the failures with today's ladder, if there are enough of them. ``advised_*`` is null if
    nothing is advised; ``reason`` states why. `search` describes the criteria.
    """
    both = [
        F.struct(F.lit(is_whole).alias("is_whole"), name.alias("task"))
        for is_whole, name in ((True, F.lit("")), (False, F.col("task")))
    ]
    exploded = episodes.withColumn("of_task", F.col("task")).withColumn("of", F.explode(F.array(*both)))
    each = exploded.withColumns({name: F.col("of")[name] for name in ("is_whole", "task")})
    ladders_of = todays_ladders(each, _KEYS)
    each = each.join(F.broadcast(_with_own_ladder(ladders_of)), ["queue", "is_whole", "of_task"], "left_anti")
    rows = counted_intervals(each, _KEYS, options, ("of_task", "exception_type"))
    today = ladders_of.join(revived(each, _KEYS), _KEYS, "left").fillna(0, ["revived"])
    rows = rows.join(F.broadcast(_several(rows)), "queue", "left").where(F.col("is_whole") | F.col("is_several"))
    counted, ladders = (spread(frame, *_KEYS).groupBy(*_KEYS) for frame in (rows, today))
    groups = counted.cogroup(ladders)
    return groups.applyInPandas(lambda key, rows, today: _advice(key, rows, today, options), LADDER_ADVICE)


def _with_own_ladder(today: DataFrame) -> DataFrame:
    """Return the tasks (``queue``, ``is_whole``, ``of_task``) whose ladder of today is not that of their queue."""
    whole = today.where("is_whole").select("queue", F.col("ladder").alias("of_queue"))
    tasks = today.where(~F.col("is_whole")).select(
        "queue", F.col("task").alias("of_task"), F.col("ladder").alias("own")
    )
    differing = tasks.join(whole, "queue").where(F.col("own") != F.col("of_queue"))
    return differing.select("queue", F.lit(True).alias("is_whole"), "of_task")


def _several(rows: DataFrame) -> DataFrame:
    """Return the queues with several tasks: the only task of a queue would have the same row as the queue."""
    tasks = rows.where(~F.col("is_whole")).groupBy("queue").agg(F.countDistinct("task").alias("tasks"))
    return tasks.where(F.col("tasks") > 1).select("queue", F.lit(True).alias("is_several"))


def _advice(key: tuple[Any, ...], rows: pd.DataFrame, today: pd.DataFrame, options: Options) -> pd.DataFrame:
    queue, is_whole, task = key
    columns = LADDER_ADVICE.fieldNames()
    intervals = intervals_of(rows, options)
    if not is_whole and (rows.empty or lacking(intervals, options)):
        return pd.DataFrame(columns=columns)
    current = today_of(today)
    observed = None if today.empty else observed_of(rows, intervals, today["ladder"].iloc[0], options)
    if intervals.count[rows["ladder"].to_numpy() == EXACT].sum() > _MOSTLY * intervals.episodes:
        decision = Decision(False, _OF_EXACT)
    else:
        decision = decide(
            intervals,
            current,
            options,
            late_s=late_of(rows),
            counted=observed.summary(options) if observed else None,
            is_only_ladder=rows["ladder"].nunique() == 1,
            revived=int(today["revived"].sum()) if "revived" in today else 0,
        )
    row: dict[str, object] = {
        "queue": queue,
        "task": None if is_whole else task,
        "enough_data": decision.enough_data,
        "reason": decision.reason,
        "learn": decision.learn,
        "episodes": intervals.episodes,
        "recoveries": intervals.recoveries,
        "current_ms": list(current.ladder_ms) or None,
        "advised_ms": list(decision.advised_ms) if decision.advised_ms else None,
        "refused_ms": list(decision.refused_ms) if decision.refused_ms else None,
        "lost": decision.lost,
        "counted": int(observed.count.sum()) if observed and decision.is_counted else None,
        **figure_columns("current_", decision.current),
        **figure_columns("advised_", decision.advised),
        **_model(decision),
        **_backtest(decision),
    }
    return pd.DataFrame([row], columns=columns)


def _model(decision: Decision) -> dict[str, object]:
    found = decision.attempts
    if found is None:
        return {"model": None}
    _, low, high = found.part
    return {"model": found.favoured, "by_attempts_low": low, "by_attempts_high": high}


def _backtest(decision: Decision) -> dict[str, object]:
    found = decision.backtest
    if found is None:
        return {}
    both = {"current": found.today, "advised": found.advised}
    figures = {
        f"backtest_{which}_{name}": _or_null(float(getattr(each, name)))
        for which, each in both.items()
        for name in BACKTEST_FIGURES
    }
    return {"backtest_failures": found.failures, **figures}


def figure_columns(prefix: str, summary: Summary | None) -> Mapping[str, float | None]:
    """Return the columns of a ladder's figures with their intervals; null without a summary."""
    return {
        f"{prefix}{name}{end}": None if summary is None else _or_null(summary[name][at])
        for name in FIGURES
        for at, end in enumerate(("", "_low", "_high"))
    }


def _or_null(value: float) -> float | None:
    return None if value != value else value


def what_if(episodes: DataFrame, ladders: Mapping[str, Sequence[Ladder]], options: Options) -> DataFrame:
    """Return `WHAT_IF` of `EPISODES` for ``ladders``: queue -> ladders in milliseconds, one row each.

    Figures are those of `ladders.summarise`, null if there is not enough data; ``reason`` states what is lacking, or
    that clocks differ. A queue without any retried failure has no row. Raises `SettingsError` for a ladder that
    RabbitMQ cannot hold.
    """
    for queue, ladder in ((queue, each) for queue, named in ladders.items() for each in named):
        if not ladder or not all(isinstance(each, int) and 1 <= each <= MAX_TTL_MS for each in ladder):
            raise SettingsError(f"ladder of {queue}", ladder, "Give at least one delay, each of 1 ms to ten years.")
    wanted = {queue: [tuple(each) for each in named] for queue, named in ladders.items()}
    chosen = episodes.where(F.col("queue").isin(list(wanted)))
    counted = spread(counted_intervals(chosen, ["queue"], options, ("task", "exception_type")), "queue")
    of_queue = counted.groupBy("queue")
    return of_queue.applyInPandas(lambda key, rows: _rows(key[0], rows, wanted[key[0]], options), WHAT_IF)


def unseen(ladders: Mapping[str, Sequence[Ladder]], seen: Collection[str]) -> list[str]:
    """Return a sentence for each queue of ``ladders`` that is not in the table, whose queues are ``seen``."""
    return [f"no retried failure of the queue {queue}" for queue in ladders if queue not in seen]


def _rows(queue: str, rows: pd.DataFrame, ladders: Sequence[Ladder], options: Options) -> pd.DataFrame:
    intervals = intervals_of(rows, options)
    too_few = lacking(intervals, options) or early_sentence(late_of(rows), intervals)
    summaries: list[Summary | None] = [None] * len(ladders)
    if too_few is None:
        estimate = shares(intervals, options)
        late = lateness_of(late_of(rows), intervals, estimate)
        attempts = by_attempt(intervals, estimate, options)
        summaries = [summarise(each, estimate, options.grid, late, attempts) for each in ladders]
    each_has = {"queue": queue, "enough_data": too_few is None, "reason": too_few, "episodes": intervals.episodes}
    found = [
        {"ladder_ms": list(ladder), **each_has, **figure_columns("", summary)}
        for ladder, summary in zip(ladders, summaries, strict=True)
    ]
    return pd.DataFrame(found, columns=WHAT_IF.fieldNames())
