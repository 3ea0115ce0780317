"""The table ``attempts``: the outcome of each attempt, the wait before it, and its failure episode so far.

The events of one attempt become one row; then each row is combined with the earlier attempts of its task. All windows
are partitioned by the task id first, so events hash-partitioned by ``coalesce(task_id, event_id)`` are not moved again.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...events.schema import DISCARDED, EXHAUSTED, FORWARDED, PARKED, RECOVERED
from ..schema import ATTEMPTS

#: Stores a small result that is needed more than once, and returns the stored result.
Keep = Callable[[DataFrame], DataFrame]

#: Outcomes of failed attempts, and all that end a failure episode.
FAILED = (PARKED, EXHAUSTED)
ENDS = (RECOVERED, EXHAUSTED, DISCARDED)

#: Reasons of exhausted tasks whose last attempt did not run: their end is no evidence about the failure.
NOT_RUN = ("expired", "unknown_task", "undecodable")

#: If an attempt has several events, the one with the highest rank is its outcome.
_RANKS = {PARKED: 0, EXHAUSTED: 1, RECOVERED: 2, DISCARDED: 3}

_KEY = ("task_id", "generation")
_START, _END, _HERE = Window.unboundedPreceding, Window.unboundedFollowing, Window.currentRow


def attempts(events: DataFrame) -> DataFrame:
    """Return the attempts of cleaned events (`ATTEMPTS` and ``day``, on which the attempt ended).

    Events that are not partitioned by ``coalesce(task_id, event_id)`` are moved twice.
    """
    found = _with_previous(_placed(_merged(_outcomes(events))))
    # A task that is discarded after its end, or before its first failure, ends no failure episode.
    valid = found.where(is_attempt() | F.col("episode").isNotNull())
    return valid.select(*ATTEMPTS.fieldNames(), F.to_date("ended_at").alias("day"))


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
    """Return the events that end attempts or failure episodes, with the columns needed."""
    outcome = F.when(F.col("kind") == FORWARDED, PARKED).otherwise(F.col("kind"))
    return events.where(F.col("kind").isin(FORWARDED, *_RANKS)).select(
        F.coalesce("task_id", "event_id").alias("task_id"),
        "generation",
        "attempt",
        "task",
        "queue",
        "worker",
        outcome.alias("outcome"),
        F.col("occurred_at").alias("ended_at"),
        "runtime_ms",
        "exception_type",
        "fingerprint",
        "exception_message",
        "reason",
        "ladder_ms",
        "max_retries",
        "first_failed_at",
        F.struct("tier", "delay_ms").alias("wait"),
        "kind",
        "event_id",
        (F.col("kind") == DISCARDED).alias("is_discard"),
    )


def _merged(outcomes: DataFrame) -> DataFrame:
    """Return one row per attempt; ``wait`` is taken from its parked event, independent of the attempt's outcome."""
    rank = F.lit(0)
    for outcome, value in _RANKS.items():
        rank = F.when(F.col("outcome") == outcome, value).otherwise(rank)
    same = Window.partitionBy(*_KEY, "attempt", "is_discard").orderBy(
        rank.desc(), "ended_at", "kind", "worker", "event_id"
    )
    wait = F.first(F.when(F.col("outcome") == PARKED, F.col("wait")), ignorenulls=True)
    return (
        outcomes.withColumns({"wait": wait.over(same.rowsBetween(_START, _END)), "row": F.row_number().over(same)})
        .where(F.col("row") == 1)
        .drop("row", "kind", "event_id")
    )


def _placed(merged: DataFrame) -> DataFrame:
    """Add ``origin``, whether the episode ``is_over`` before this row, and ``seconds`` from the origin to the end.

    The origin is the end of the first failure: the end of attempt 0, or as recorded with the first later attempt.
    """
    is_first = is_failed() & (F.col("attempt") == 0)
    known = F.when(is_first, F.coalesce("first_failed_at", "ended_at")).otherwise(F.col("first_failed_at"))
    along = Window.partitionBy(*_KEY).orderBy("attempt", "is_discard")
    placed = merged.withColumns(
        {
            "origin": F.first(known, ignorenulls=True).over(along.rowsBetween(_START, _END)),
            "is_over": F.coalesce(
                F.max(F.col("outcome").isin(*ENDS)).over(along.rowsBetween(_START, -1)), F.lit(False)
            ),
        }
    )
    elapsed = (F.unix_micros("ended_at") - F.unix_micros("origin")) / 1e6
    is_timed = ~F.col("is_over") & ~F.col("is_discard") & F.col("origin").isNotNull()
    return placed.withColumn("seconds", F.when(is_timed, F.greatest(elapsed, F.lit(0.0))))


def _with_previous(placed: DataFrame) -> DataFrame:
    """Add the columns that depend on earlier attempts. Times never decrease: each is the longest so far."""
    along = Window.partitionBy(*_KEY).orderBy("attempt", "is_discard")
    before, so_far = along.rowsBetween(_START, -1), along.rowsBetween(_START, _HERE)
    counts = is_failed() & ~F.col("is_over")
    has_run = is_failed() & ~F.coalesce(F.col("reason").isin(*NOT_RUN), F.lit(False))
    attempt = F.struct("attempt", "outcome", "wait", "exception_type")
    delay_ms = F.col("wait")["delay_ms"]
    knows_waits = (F.count(delay_ms).over(before) == F.col("attempt")) & ~F.col("is_discard")
    extended = placed.withColumns(
        {
            "previous": F.last(F.when(~F.col("is_discard"), attempt), ignorenulls=True).over(before),
            "longest_before": F.max("seconds").over(before),
            "longest": F.max("seconds").over(so_far),
            "failed_attempts": F.count(F.when(counts, 1)).over(so_far).cast("int"),
            "wasted_ms": F.coalesce(F.sum(F.when(counts, F.col("runtime_ms"))).over(so_far), F.lit(0)),
            "first_exception": F.first(F.when(counts, F.col("exception_type")), ignorenulls=True).over(so_far),
            "low_seconds": F.coalesce(F.max(F.when(has_run, F.col("seconds"))).over(so_far), F.lit(0.0)),
            "waited_ms": F.when(knows_waits, F.sum(delay_ms).over(before)),
        }
    )
    previous = F.col("previous")
    is_known = (previous["attempt"] == F.col("attempt") - 1) & previous["outcome"].isin(*FAILED)
    is_of_episode = ~F.col("is_over") & ((F.col("attempt") > 0) | (F.col("failed_attempts") > 0))
    episode = F.struct(
        F.col("origin").alias("first_failed_at"),
        F.col("first_exception").alias("exception_type"),
        "failed_attempts",
        "wasted_ms",
        "low_seconds",
        "waited_ms",
    )
    return extended.withColumns(
        {
            "tier": F.when(is_known, previous["wait"]["tier"]),
            "delay_ms": F.when(is_known, previous["wait"]["delay_ms"]),
            "previous_exception_type": F.when(is_known, previous["exception_type"]),
            "t_seconds": F.when(F.col("seconds").isNotNull(), F.col("longest")),
            "previous_t_seconds": F.when(is_known & ~F.col("is_over"), F.col("longest_before")),
            "episode": F.when(is_of_episode, episode).cast(ATTEMPTS["episode"].dataType),
        }
    )
