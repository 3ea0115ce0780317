"""Failure episodes: one row per task, and replay of it, from its first failure to its end."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...events.schema import DISCARDED, PARKED, RECOVERED
from ..schema import EPISODE_SO_FAR, EPISODES
from .along import ENDS

OPEN = "open"

_KEY = ("task_id", "generation")


def ended(attempts: DataFrame) -> DataFrame:
    """Return the failure episodes that ended, under the day of their end.

    A failure episode ends with its first attempt that recovers or is exhausted, or when it is discarded. The row that
    ends it contains the whole episode, so rows are only filtered here, not moved.
    """
    is_end = F.col("outcome").isin(*ENDS) & F.col("episode").isNotNull()
    high = F.when(F.col("outcome") == RECOVERED, F.col("t_seconds"))
    return _episodes(attempts.where(is_end), F.col("outcome"), F.col("ended_at"), high)


def still_open(attempts: DataFrame) -> DataFrame:
    """Return the failure episodes whose last known attempt was parked, under the day of that attempt.

    They are not written to a table, as the next day changes them.
    """
    return open_episodes(attempts, last_waits(attempts))


def last_waits(attempts: DataFrame) -> DataFrame:
    """Return ``task_id``, ``generation`` and ``attempt`` of parked tasks without a later event.

    One number encodes the attempt, whether it is one, and whether it waits, so that little data is moved by task.
    """
    number = F.col("attempt").cast("long") * 4 + (F.col("outcome") == DISCARDED).cast("int") * 2 + _waits().cast("int")
    last = attempts.groupBy(*_KEY).agg(F.max(number).alias("number"))
    return last.where(F.col("number") % 4 == 1).select(*_KEY, F.floor(F.col("number") / 4).cast("int").alias("attempt"))


def open_episodes(attempts: DataFrame, waiting: DataFrame) -> DataFrame:
    """Return the ``open`` failure episodes: those of the attempts that `last_waits` found ``waiting``."""
    found = attempts.where(_waits()).join(waiting, [*_KEY, "attempt"], "left_semi")
    return _episodes(found, F.lit(OPEN), F.lit(None).cast("timestamp"), F.lit(None).cast("double"))


def _waits() -> Column:
    return (F.col("outcome") == PARKED) & F.col("episode").isNotNull()


def _episodes(attempts: DataFrame, outcome: Column, ended_at: Column, high: Column) -> DataFrame:
    so_far, so_far_names = F.col("episode"), EPISODE_SO_FAR.fieldNames()
    chosen = {
        **{name: so_far[name] for name in EPISODES.fieldNames() if name in so_far_names},
        "high_seconds": high,
        "outcome": outcome,
        "ended_at": ended_at,
    }
    return attempts.select(*[chosen.get(name, F.col(name)).alias(name) for name in EPISODES.fieldNames()], "day")
