"""The table ``attempts``: the outcome of each attempt, the wait before it, and its failure episode so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ...events.schema import DISCARDED, EXHAUSTED, FORWARDED, PARKED, RECOVERED
from ..schema import ATTEMPTS, DAY
from ..storage.day_files import Rows
from .along import FAILED, attempts_of, whole_tasks

#: Stores a small result that is needed more than once, and returns the stored result.
Keep = Callable[[DataFrame], DataFrame]

_WITH_DAY = StructType([*ATTEMPTS, DAY])

#: Columns of the events that the attempts are made of, besides ``task_id`` and ``outcome``.
_NEEDED = (
    "generation",
    "attempt",
    "task",
    "queue",
    "worker",
    "kind",
    "tier",
    "delay_ms",
    "first_failed_at",
    "runtime_ms",
    "exception_type",
    "fingerprint",
    "exception_message",
    "reason",
    "ladder_ms",
    "max_retries",
)


def attempts(events: DataFrame) -> Rows:
    """Return the attempts of cleaned events (`ATTEMPTS` and ``day``, on which the attempt ended).

    The events must be hash-partitioned by ``coalesce(task_id, event_id)``, as those of `clean` are: they are not moved.
    """
    return Rows(_outcomes(events), _of_partition, _WITH_DAY)


def is_failed() -> Column:
    """Return whether an attempt was made and failed."""
    return F.col("outcome").isin(*FAILED)


def is_attempt() -> Column:
    """Return whether a row is an attempt, and not a task that was discarded while it waited."""
    return F.col("outcome") != DISCARDED


def not_kept(frame: DataFrame) -> DataFrame:
    """Return the frame unchanged: it is computed each time it is needed."""
    return frame


def _outcomes(events: DataFrame) -> DataFrame:
    """Return the events that end attempts or failure episodes, those of a task together, by their id."""
    outcome = F.when(F.col("kind") == FORWARDED, PARKED).otherwise(F.col("kind")).alias("outcome")
    task_id = F.coalesce("task_id", "event_id").alias("task_id")
    ending = events.where(F.col("kind").isin(FORWARDED, PARKED, EXHAUSTED, RECOVERED, DISCARDED))
    found = ending.select(task_id, outcome, F.col("occurred_at").alias("ended_at"), "event_id", *_NEEDED)
    return found.sortWithinPartitions("task_id", "event_id")


def _of_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the attempts of a partition, in a worker of Spark."""
    schema = to_arrow_schema(_WITH_DAY, timezone="UTC")
    for tasks in whole_tasks(batches):
        yield from attempts_of(tasks, schema).to_batches()
