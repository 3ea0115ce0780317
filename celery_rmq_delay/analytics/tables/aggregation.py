"""Count failure episodes by intervals between grid cells: the input of the estimate, of bounded size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...events.schema import EXHAUSTED, RECOVERED
from ..estimate.counted import Observed
from ..estimate.intervals import Floats, Intervals, by_outage
from ..estimate.lateness import widened
from ..estimate.options import Options
from .along import NOT_RUN

INTERVAL = ("low", "high", "cluster")

#: The ladder of failures with a retry after an exact delay, which no ladder determines.
EXACT = -1

_PER_CORE = 4


def ladder_id(of: str = "") -> Column:
    """Return a number for the ladder and the retries of a failure episode; ``of``: their struct, with a dot."""
    return F.xxhash64(f"{of}ladder_ms", f"{of}max_retries").alias("ladder")


def counted_intervals(episodes: DataFrame, keys: list[str], options: Options, kind: Sequence[str] = ()) -> DataFrame:
    """Return the intervals of `EPISODES`: keys, low, high (cells; `Intervals.OPEN`), cluster, ladder, is_exhausted.

    And for each of these, ``count``: failures, the sum of their ``retries``, and ``late_s``: the mean seconds by which
    the last attempt started after its planned delays, null if these are not known. ``cluster`` is the time slot in
    which the failures began, ``ladder`` is `ladder_id`, or `EXACT`. ``kind``: the columns by which failures have causes
    of their own; their hash is the column ``kind``, for `comparable`. Without them there is no such column.

    Failure episodes without a retry that ended are left out: they carry no information about how long failures last. So
    are replays of tasks (`first_runs`). A failure that ended beyond the grid counts as not observed to end.
    """
    grid = options.grid
    points = grid.points

    def step(seconds: Column) -> Column:
        """Return the number of the nearest point, from 0, rounded as in `Grid.cells`."""
        logarithm = F.log10(F.greatest(seconds, F.lit(grid.first_s)) / F.lit(grid.first_s))
        return F.floor(logarithm * F.lit(grid.per_decade) + F.lit(0.5))

    low, high = F.col("low_seconds"), F.col("high_seconds")
    low_cell = F.when(low > 0, F.least(step(low), F.lit(points - 1)) + 1).otherwise(0)
    is_open = high.isNull() | (step(high) >= points)
    high_cell = F.when(is_open, F.lit(Intervals.OPEN)).otherwise(step(high) + 1)
    cluster = F.floor(F.unix_timestamp("first_failed_at") / F.lit(options.cluster_s))
    of_kind = [F.xxhash64(*kind).alias("kind")] if kind else []
    return (
        first_runs(episodes)
        .where((low > 0) | high.isNotNull())
        .select(
            *keys,
            # Both ends in one cell: the failure ended in the step before it.
            F.least(low_cell, high_cell - 1).cast("long").alias("low"),
            high_cell.cast("long").alias("high"),
            F.coalesce(cluster, F.lit(0)).cast("long").alias("cluster"),
            F.when(F.col("exact_waits") > 0, F.lit(EXACT)).otherwise(ladder_id()).alias("ladder"),
            *of_kind,
            ((F.col("outcome") == EXHAUSTED) & has_run()).alias("is_exhausted"),
            (F.col("failed_attempts") - F.when(high.isNull(), 1).otherwise(0)).alias("retries"),
            (F.coalesce(high, low) - F.col("waited_ms") / 1000).alias("late_s"),
        )
        .groupBy(*keys, *INTERVAL, "ladder", *(["kind"] if kind else []), "is_exhausted")
        .agg(
            F.count("*").alias("count"), F.sum("retries").alias("retries"), F.round(F.avg("late_s"), 3).alias("late_s")
        )
    )


def spread(rows: DataFrame, *keys: str) -> DataFrame:
    """Return the rows in several partitions per core: Spark merges small ones, and estimates can take seconds."""
    return rows.repartition(_PER_CORE * rows.sparkSession.sparkContext.defaultParallelism, *keys)


def first_runs(episodes: DataFrame) -> DataFrame:
    """Return the failure episodes of tasks that were not replayed by hand: these fail later, and for other reasons."""
    return episodes.where(F.coalesce("generation", F.lit(0)) == 0)


def revived(episodes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return by keys how many exhausted tasks recovered when they were replayed, as the column ``revived``."""
    is_replay = (F.col("generation") > 0) & (F.col("outcome") == RECOVERED)
    replays = episodes.where(is_replay).select("task_id").distinct()
    found = first_runs(episodes).where(F.col("outcome") == EXHAUSTED).join(replays, "task_id", "left_semi")
    # New columns, as in `todays_ladders`.
    renewed = [F.col(name).alias(name) for name in keys]
    return found.groupBy(*keys).agg(F.count("*").alias("revived")).select(*renewed, "revived")


def has_run() -> Column:
    """Return whether the last attempt of a failure episode ran."""
    return ~F.coalesce(F.col("reason").isin(*NOT_RUN), F.lit(False))


def intervals_of(rows: pd.DataFrame, options: Options) -> Intervals:
    """Return the rows of one group as intervals by outage, widened if the clocks of workers differ."""
    low, high, cluster = (rows[name].to_numpy(dtype="int64") for name in INTERVAL)
    count = rows["count"].to_numpy(dtype="float64")
    if "late_s" in rows:
        low, high = widened(low, high, rows["late_s"].to_numpy(dtype="float64"), count, options.grid)
    known = rows["retries"].to_numpy(dtype="float64") if "retries" in rows else np.zeros(len(rows))
    retries = np.round(known / count).astype(np.int64)
    fair = comparable(rows, options) if "kind" in rows else count
    return by_outage(Intervals(low, high, cluster, count, cluster, retries, fair), options)


def comparable(rows: pd.DataFrame, options: Options) -> Floats:
    """Return how many failures of each row to count where ladders, or jitter, are to show what decides a recovery.

    Ladders change because failures have changed, and tasks have ladders of their own because their failures differ. So
    ladders are compared only within a kind of failures and a time slot that has several of them, each counted as often
    as the second most frequent one there. Without enough of these, only the failures with the most frequent ladder
    count: jitter is independent of the failures.
    """
    place = [rows["kind"], rows["cluster"]]
    of_ladder = rows["count"].groupby([*place, rows["ladder"]]).transform("sum")
    each = rows.assign(of_ladder=of_ladder)
    sizes = each.drop_duplicates(["kind", "cluster", "ladder"]).groupby(["kind", "cluster"])["of_ladder"]
    second = sizes.nlargest(2).groupby(level=[0, 1]).agg(lambda two: two.iloc[1] if len(two) > 1 else 0.0)
    least = second.reindex(pd.MultiIndex.from_arrays(place)).to_numpy(dtype="float64")
    found = rows["count"].to_numpy(dtype="float64") * np.minimum(1.0, least / of_ladder.to_numpy(dtype="float64"))
    if found.sum() >= options.min_episodes:
        return np.asarray(found)
    most = rows["count"].groupby(rows["ladder"]).sum().idxmax() if len(rows) else None
    return np.asarray(np.where(rows["ladder"] == most, rows["count"], 0.0), dtype=np.float64)


def late_of(rows: pd.DataFrame) -> Floats:
    """Return by how many seconds the last attempts of one group were late."""
    return rows["late_s"].to_numpy(dtype="float64")  # type: ignore[no-any-return]


def observed_of(rows: pd.DataFrame, intervals: Intervals, ladder: int, options: Options) -> Observed:
    """Return the ended failures with a ladder, without those so late that others of their time can still be waiting."""
    is_over, exhausted = intervals.is_over, rows["is_exhausted"].to_numpy(dtype=bool)
    is_chosen = (rows["ladder"].to_numpy(dtype="int64") == ladder) & (is_over | exhausted)
    if is_chosen.any():
        longest = np.where(is_over, np.minimum(intervals.high, options.grid.points), intervals.low)[is_chosen].max()
        slots = np.ceil(options.grid.times[longest] / options.cluster_s)
        is_chosen &= intervals.began + slots <= intervals.began.max()
    chosen = intervals.chosen(is_chosen)
    retries = rows["retries"].to_numpy(dtype="float64")[is_chosen]
    return Observed(chosen.high, exhausted[is_chosen], retries, chosen.count, chosen.cluster)
