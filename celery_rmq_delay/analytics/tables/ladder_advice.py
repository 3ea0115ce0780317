"""The table ``ladder_advice``: today's ladder and the best one found, per queue and per task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...history.tables import BACKTEST_FIGURES, FIGURES
from ..estimate.decision import Decision, decide
from ..estimate.intervals import lacking
from ..estimate.ladders import Summary
from ..estimate.options import Options
from ..schema import LADDER_ADVICE
from .aggregation import EXACT, counted_intervals, intervals_of, late_retries_of, observed_of, revived, spread
from .today import today_of, todays_ladders

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

    def of_group(key: tuple[Any, ...], rows: pd.DataFrame, today: pd.DataFrame) -> pd.DataFrame:
        return _advice(key, rows, today, options)

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
    return counted.cogroup(ladders).applyInPandas(of_group, LADDER_ADVICE)


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
            retries=late_retries_of(rows),
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
        f"{prefix}{name}{end}": None if summary is None else _or_null(summary.figures[name][at])
        for name in FIGURES
        for at, end in enumerate(("", "_low", "_high"))
    }


def _or_null(value: float) -> float | None:
    return None if value != value else value
