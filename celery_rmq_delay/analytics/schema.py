"""The columns of the history as Spark reads them, and of every table that the pipeline writes."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ..history.columns import COLUMNS, Kind

_TYPES: dict[Kind, DataType] = {
    "text": StringType(),
    "time": TimestampType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "delays": ArrayType(LongType(), containsNull=False),
}

#: What the history files have.
EVENTS = StructType([StructField(each.name, _TYPES[each.kind]) for each in COLUMNS])

#: Rows that no table counts, as JSON, with the file they came from and why.
QUARANTINE = StructType(
    [
        StructField("reason", StringType()),
        StructField("file", StringType()),
        StructField("row", StringType()),
    ]
)

#: What a failure episode had come to when an attempt ended: its origin, the exception of its first failure, the failed
#: attempts
#: that are known and their runtimes, how long the failure had lasted for certain, and the planned delays of all waits
#: before this attempt (null where one is not known).
EPISODE_SO_FAR = StructType(
    [
        StructField("first_failed_at", TimestampType()),
        StructField("exception_type", StringType()),
        StructField("failed_attempts", IntegerType()),
        StructField("wasted_ms", LongType()),
        StructField("low_seconds", DoubleType()),
        StructField("waited_ms", LongType()),
    ]
)

#: One row per attempt that a retried task made: failed ones (``parked``, ``exhausted``) and good ones (``recovered``);
#: and one per task that was taken out while it waited (``discarded``), which is no attempt, but ends its failure
#: episode.
#: ``task_id`` is never null: what had none goes by its event's id.
ATTEMPTS = StructType(
    [
        StructField("task_id", StringType()),
        StructField("generation", IntegerType()),
        StructField("attempt", IntegerType()),
        StructField("task", StringType()),
        StructField("queue", StringType()),
        StructField("worker", StringType()),
        StructField("outcome", StringType()),
        StructField("ended_at", TimestampType()),
        StructField("runtime_ms", LongType()),
        StructField("exception_type", StringType()),
        StructField("fingerprint", StringType()),
        StructField("exception_message", StringType()),
        StructField("reason", StringType()),
        StructField("ladder_ms", ArrayType(LongType(), containsNull=False)),
        StructField("max_retries", IntegerType()),
        #: Where the task waited before this attempt: null for a first attempt, and where that event is not known.
        StructField("tier", IntegerType()),
        StructField("delay_ms", LongType()),
        StructField("previous_exception_type", StringType()),
        #: Seconds from the first failure's end to the end of this attempt, and of the failed attempt before it; they
        #: never decrease with the attempt, whatever the workers' clocks say.
        StructField("t_seconds", DoubleType()),
        StructField("previous_t_seconds", DoubleType()),
        #: Null where the attempt belongs to no failure episode: nothing had failed before it, or the failure episode
        #: was over already.
        StructField("episode", EPISODE_SO_FAR),
    ]
)

#: One row per task (and replay of it) from its first failure to its end. ``outcome`` is ``recovered``, ``exhausted``,
#: ``discarded`` or ``open`` (what waits at the end of the days that were read; never written).
EPISODES = StructType(
    [
        StructField("task_id", StringType()),
        StructField("generation", IntegerType()),
        StructField("task", StringType()),
        StructField("queue", StringType()),
        StructField("exception_type", StringType()),
        StructField("outcome", StringType()),
        StructField("reason", StringType()),
        StructField("first_failed_at", TimestampType()),
        StructField("ended_at", TimestampType()),
        StructField("failed_attempts", IntegerType()),
        StructField("wasted_ms", LongType()),
        #: The failure was over after ``low_seconds`` and at ``high_seconds`` at the latest; null: not seen to be over.
        StructField("low_seconds", DoubleType()),
        StructField("high_seconds", DoubleType()),
        StructField("ladder_ms", ArrayType(LongType(), containsNull=False)),
        #: Retries that the task has; null: for ever.
        StructField("max_retries", IntegerType()),
        #: The planned delays before the last attempt together; null: one is not known, or the task was taken out.
        StructField("waited_ms", LongType()),
    ]
)

TIER_OUTCOMES = StructType(
    [
        StructField("task", StringType()),
        StructField("queue", StringType()),
        StructField("exception_type", StringType()),
        StructField("tier", IntegerType()),
        StructField("delay_ms", LongType()),
        StructField("parked", LongType()),
        StructField("recovered", LongType()),
        StructField("exhausted", LongType()),
        StructField("rate", DoubleType()),
        StructField("rate_low", DoubleType()),
        StructField("rate_high", DoubleType()),
        StructField("wasted_ms", LongType()),
    ]
)

RECOVERY_CURVE = StructType(
    [
        StructField("scope", StringType()),
        StructField("name", StringType()),
        StructField("t_seconds", DoubleType()),
        StructField("recovered_share", DoubleType()),
        StructField("share_low", DoubleType()),
        StructField("share_high", DoubleType()),
        StructField("episodes", LongType()),
        StructField("censored", LongType()),
    ]
)

INCIDENTS = StructType(
    [
        StructField("started_at", TimestampType()),
        StructField("ended_at", TimestampType()),
        StructField("tasks", ArrayType(StringType(), containsNull=False)),
        StructField("exceptions", ArrayType(StringType(), containsNull=False)),
        StructField("peak_per_minute", LongType()),
        StructField("failures", LongType()),
        StructField("tasks_touched", LongType()),
        StructField("recovered_share", DoubleType()),
        StructField("wasted_ms", LongType()),
    ]
)

FAILURE_GROUPS = StructType(
    [
        StructField("fingerprint", StringType()),
        StructField("exception_type", StringType()),
        StructField("exception_message", StringType()),
        StructField("tasks", ArrayType(StringType(), containsNull=False)),
        StructField("failures", LongType()),
        StructField("tasks_touched", LongType()),
        StructField("exhausted", LongType()),
        StructField("first_seen", TimestampType()),
        StructField("last_seen", TimestampType()),
    ]
)

HOURLY = StructType(
    [
        StructField("hour", TimestampType()),
        StructField("queue", StringType()),
        StructField("task", StringType()),
        StructField("first_attempts", LongType()),
        StructField("failures", LongType()),
        StructField("parked", LongType()),
        StructField("recovered", LongType()),
        StructField("exhausted", LongType()),
    ]
)


def _figures(prefix: str) -> list[StructField]:
    """Return the figures of a ladder, each with its bootstrap interval."""
    names = ("recovery", "attempts", "median_s", "p95_s", "exhausted")
    return [StructField(f"{prefix}{name}{end}", DoubleType()) for name in names for end in ("", "_low", "_high")]


LADDER_ADVICE = StructType(
    [
        StructField("queue", StringType()),
        StructField("task", StringType()),
        StructField("enough_data", BooleanType()),
        StructField("reason", StringType()),
        StructField("episodes", LongType()),
        StructField("recoveries", LongType()),
        StructField("current_ms", ArrayType(LongType(), containsNull=False)),
        StructField("advised_ms", ArrayType(LongType(), containsNull=False)),
        #: The best ladder found, and the counted recoveries that it may lose; null where it is not refused for them.
        StructField("refused_ms", ArrayType(LongType(), containsNull=False)),
        StructField("lost", LongType()),
        *_figures("current_"),
        *_figures("advised_"),
    ]
)

WHAT_IF = StructType(
    [
        StructField("queue", StringType()),
        StructField("ladder_ms", ArrayType(LongType(), containsNull=False)),
        StructField("enough_data", BooleanType()),
        StructField("reason", StringType()),
        StructField("episodes", LongType()),
        *_figures(""),
    ]
)

#: The day that a row of a table belongs to; the tables' folders are ``<table>/day=YYYY-MM-DD/``.
DAY = StructField("day", DateType())
