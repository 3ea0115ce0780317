"""The table ``attempts``: the outcome of each attempt, the wait before it, and its failure episode so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyarrow import compute
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ...events.schema import DISCARDED, EXHAUSTED, FORWARDED, PARKED, RECOVERED, ROLLUP
from ..schema import ATTEMPTS, DAY
from ..storage.made import Made
from .along import FAILED, attempts_of, flags, whole_tasks
from .counts import COUNTS, counts_of, successes_of

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
    "ok_count",
)


def attempts(events: DataFrame) -> Made:
    """Return the attempts of cleaned events (`ATTEMPTS` and ``day``, on which the attempt ended), and their `COUNTS`.

    The counts include the successful first attempts of rollups. The events must be hash-partitioned by
    ``coalesce(task_id, event_id)``, as those of `clean` are: they are not moved.
    """
    return Made(_outcomes(events), _of_partition, _WITH_DAY, COUNTS)


def is_failed() -> Column:
    """Return whether an attempt was made and failed."""
    return F.col("outcome").isin(*FAILED)


def _outcomes(events: DataFrame) -> DataFrame:
    """Return rollups and the events that end attempts or failure episodes, those of a task together, by their id."""
    outcome = F.when(F.col("kind") == FORWARDED, PARKED).otherwise(F.col("kind")).alias("outcome")
    task_id = F.coalesce("task_id", "event_id").alias("task_id")
    counted = events.where(F.col("kind").isin(FORWARDED, PARKED, EXHAUSTED, RECOVERED, DISCARDED, ROLLUP))
    found = counted.select(task_id, outcome, F.col("occurred_at").alias("ended_at"), "event_id", *_NEEDED)
    return found.sortWithinPartitions("task_id", "event_id")


def _of_partition(batches: Iterator[pa.RecordBatch], count: Callable[[pa.Table], None]) -> Iterator[pa.RecordBatch]:
    """Yield the attempts of a partition, in a worker of Spark; ``count`` receives their counts."""
    schema = to_arrow_schema(_WITH_DAY, timezone="UTC")
    for events in whole_tasks(batches):
        is_rollup = flags(compute.equal(events["kind"], ROLLUP))
        if is_rollup.any():
            count(successes_of(events.filter(pa.array(is_rollup))))
            events = events.filter(pa.array(~is_rollup))
        found = attempts_of(events, schema)
        for each in counts_of(found):
            count(each)
        yield from found.to_batches()
