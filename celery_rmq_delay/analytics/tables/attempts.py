"""The table ``attempts``, and ``episodes``: a row per task, and replay of it, from its first failure to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyarrow import compute
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ...events.schema import DISCARDED, EXHAUSTED, FORWARDED, PARKED, RECOVERED, REQUEUED, ROLLUP
from ..schema import ATTEMPTS, DAY, EPISODE_SO_FAR, EPISODES
from ..storage.day_files import Made
from .along import ENDS, FAILED, attempts_of, flags, unique, where, whole_tasks
from .counts import COUNTS, counts_of, events_of, successes_of

_WITH_DAY = StructType([*ATTEMPTS, DAY])

#: Outcomes of events that end attempts or failure episodes, or a wait.
_OUTCOMES = pa.array([PARKED, EXHAUSTED, RECOVERED, DISCARDED, REQUEUED])

#: Columns of the events that the attempts are made of, besides their ids and outcomes.
_NEEDED = (
    *("generation", "attempt", "task", "queue", "worker", "kind", "tier", "delay_ms", "first_failed_at", "runtime_ms"),
    *("exception_type", "fingerprint", "exception_message", "reason", "ladder_ms", "max_retries", "ok_count"),
)


def attempts(events: DataFrame) -> Made:
    """Return the attempts (`ATTEMPTS`, ``day``) of events `by_task`, without copies, and their `COUNTS`."""
    outcome = F.when(F.col("kind") == FORWARDED, PARKED).otherwise(F.col("kind")).alias("outcome")
    names = F.col("of_task").alias("task_id"), "event_id", outcome, F.col("occurred_at").alias("ended_at")
    return Made(events.select(*names, *_NEEDED), _of_partition, _WITH_DAY, COUNTS)


def is_failed() -> Column:
    """Return whether an attempt was made and failed."""
    return F.col("outcome").isin(*FAILED)


def _of_partition(batches: Iterator[pa.RecordBatch], count: Callable[[pa.Table], None]) -> Iterator[pa.RecordBatch]:
    """Yield the attempts of a partition, in a worker of Spark; ``count`` receives their counts."""
    schema = to_arrow_schema(_WITH_DAY, timezone="UTC")
    for events in whole_tasks(batches):
        found, copies = unique(events)
        count(events_of(len(found), copies))
        is_rollup = flags(compute.equal(found["kind"], ROLLUP))
        if is_rollup.any():
            count(successes_of(where(found, is_rollup)))
        made = attempts_of(where(found, flags(compute.is_in(found["outcome"], _OUTCOMES))), schema)
        for each in counts_of(made):
            count(each)
        yield from made.to_batches()


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
    """Return the episodes whose last known attempt was parked, by its day: no table has them."""
    return open_episodes(attempts, last_waits(attempts))


def last_waits(attempts: DataFrame) -> DataFrame:
    """Return ``task_id``, ``generation`` and ``attempt`` of parked tasks without a later event."""
    # The attempt, whether it is none, and whether it waits: so little data is moved by task.
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
