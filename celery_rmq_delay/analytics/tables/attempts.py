"""The table ``attempts``: the outcome of each attempt, the wait before it, and its failure episode so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyarrow import compute
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ...events.schema import DISCARDED, EXHAUSTED, FORWARDED, PARKED, RECOVERED, REQUEUED, ROLLUP
from ..schema import ATTEMPTS, DAY
from ..storage.made import Made
from .along import FAILED, attempts_of, flags, unique, where, whole_tasks
from .counts import COUNTS, counts_of, events_of, successes_of

_WITH_DAY = StructType([*ATTEMPTS, DAY])

#: Outcomes of events that end attempts or failure episodes, or a wait.
_OUTCOMES = pa.array([PARKED, EXHAUSTED, RECOVERED, DISCARDED, REQUEUED])

#: Columns of the events that the attempts are made of, besides their ids and outcomes.
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
    """Return the attempts (`ATTEMPTS` and ``day``, on which the attempt ended) of events `by_task`, and their `COUNTS`.

    Copies of events are left out. The counts include the successful first attempts of rollups, events and copies.
    """
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
