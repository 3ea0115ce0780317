"""The table ``ladder_advice``: today's ladder and the best one found, per queue and per task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ..estimate.decision import Decision, decide, lacking
from ..estimate.ladders import Figures, Summary
from ..estimate.options import Options
from ..schema import LADDER_ADVICE
from .aggregation import counted_intervals, intervals_of
from .today import today_of, todays_ladders

#: ``is_whole``: all tasks of the queue. A null task cannot mark it: null keys of the two sides would not match.
_KEYS = ["queue", "is_whole", "task"]


def ladder_advice(episodes: DataFrame, options: Options) -> DataFrame:
    """Return `LADDER_ADVICE` of `EPISODES`: one row for each queue, and one for each task of it that has enough data.

    ``advised_*`` is null if nothing is advised; ``reason`` states why. `search` describes the criteria.
    """

    def of_group(key: tuple[Any, ...], rows: pd.DataFrame, today: pd.DataFrame) -> pd.DataFrame:
        return _advice(key, rows, today, options)

    both = [
        F.struct(F.lit(is_whole).alias("is_whole"), name.alias("task"))
        for is_whole, name in ((True, F.lit("")), (False, F.col("task")))
    ]
    exploded = episodes.withColumn("of", F.explode(F.array(*both)))
    each = exploded.withColumns({name: F.col("of")[name] for name in ("is_whole", "task")})
    rows, today = counted_intervals(each, _KEYS, options), todays_ladders(each, _KEYS)
    return rows.groupBy(*_KEYS).cogroup(today.groupBy(*_KEYS)).applyInPandas(of_group, LADDER_ADVICE)


def _advice(key: tuple[Any, ...], rows: pd.DataFrame, today: pd.DataFrame, options: Options) -> pd.DataFrame:
    queue, is_whole, task = key
    columns = LADDER_ADVICE.fieldNames()
    intervals = intervals_of(rows, options)
    if not is_whole and lacking(intervals, options):
        return pd.DataFrame(columns=columns)
    current = today_of(today)
    decision = decide(intervals, current, options)
    row: dict[str, object] = {
        "queue": queue,
        "task": None if is_whole else task,
        "enough_data": decision.enough_data,
        "reason": decision.reason,
        "episodes": intervals.episodes,
        "recoveries": intervals.recoveries,
        "current_ms": list(current.ladder_ms) or None,
        "advised_ms": list(decision.advised_ms) if decision.advised_ms else None,
        "refused_ms": list(decision.refused_ms) if decision.refused_ms else None,
        "lost": decision.lost,
        **_both(decision),
    }
    return pd.DataFrame([row], columns=columns)


def _both(decision: Decision) -> dict[str, float | None]:
    return {**figure_columns("current_", decision.current), **figure_columns("advised_", decision.advised)}


def figure_columns(prefix: str, summary: Summary | None) -> Mapping[str, float | None]:
    """Return the columns of a ladder's figures with their intervals; null without a summary."""
    return {
        f"{prefix}{name}{end}": None if summary is None else _or_null(summary.figures[name][at])
        for name in Figures.NAMES
        for at, end in enumerate(("", "_low", "_high"))
    }


def _or_null(value: float) -> float | None:
    return None if value != value else value
