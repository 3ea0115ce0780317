"""Spark schemas of the history and of every table that the pipeline writes."""

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
from .figures import BACKTEST_FIGURES, FIGURES

_TYPES: dict[Kind, DataType] = {
    "text": StringType(),
    "time": TimestampType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "delays": ArrayType(LongType(), containsNull=False),
}

#: The columns of the history files.
EVENTS = StructType([StructField(each.name, _TYPES[each.kind]) for each in COLUMNS])

#: Rows that no table counts, as JSON, with their file and the reason.
QUARANTINE = StructType(
    [
        StructField("reason", StringType()),
        StructField("file", StringType()),
        StructField("row", StringType()),
    ]
)

#: A failure episode at the end of an attempt: its origin, the exception of its first failure, the known failed attempts
#: and their runtimes, the time for which the failure certainly lasted, the sum of the planned delays before this
#: attempt (null if one is not known), and how many of them were exact delays instead of tiers.
EPISODE_SO_FAR = StructType(
    [
        StructField("first_failed_at", TimestampType()),
        StructField("exception_type", StringType()),
        StructField("failed_attempts", IntegerType()),
        StructField("wasted_ms", LongType()),
        StructField("low_seconds", DoubleType()),
        StructField("waited_ms", LongType()),
        StructField("exact_waits", IntegerType()),
    ]
)

#: One row per attempt of a retried task: failed ones (``parked``, ``exhausted``) and successful ones (``recovered``);
#: and one per task that was discarded while it waited (``discarded``), which is not an attempt but ends its failure
#: episode. ``task_id`` is never null: a task without an id has the id of its event.
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
        #: Where the task waited before this attempt: null for a first attempt, or if that event is not known.
        StructField("tier", IntegerType()),
        StructField("delay_ms", LongType()),
        StructField("previous_exception_type", StringType()),
        #: Seconds from the end of the first failure to the start of this attempt, and of the failed attempt before it;
        #: they never decrease from attempt to attempt, even if the workers' clocks differ.
        StructField("t_seconds", DoubleType()),
        StructField("previous_t_seconds", DoubleType()),
        #: Null if the attempt belongs to no failure episode: nothing failed before it, or the episode was already over.
        #: A replay that succeeds at once has one: it ends the failure for which the task was exhausted.
        StructField("episode", EPISODE_SO_FAR),
    ]
)

#: One row per task (and replay of it) from its first failure to its end. ``outcome`` is ``recovered``, ``exhausted``,
#: ``discarded`` or ``open`` (still waiting at the end of the days that were read; never written).
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
        #: The failure ended after ``low_seconds``, by ``high_seconds`` at the latest; null: its end was not observed.
        StructField("low_seconds", DoubleType()),
        StructField("high_seconds", DoubleType()),
        StructField("ladder_ms", ArrayType(LongType(), containsNull=False)),
        #: Retries that the task has; null: no limit.
        StructField("max_retries", IntegerType()),
        #: The sum of the planned delays before the last attempt; null: one is not known, or the task was discarded.
        StructField("waited_ms", LongType()),
        #: How many of these delays were exact ones instead of tiers.
        StructField("exact_waits", IntegerType()),
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
        #: How many independent tasks would vary as much as those of this day: those of one hour can be of one outage.
        StructField("independent", DoubleType()),
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
        StructField("queues", ArrayType(StringType(), containsNull=False)),
        StructField("tasks", ArrayType(StringType(), containsNull=False)),
        StructField("exceptions", ArrayType(StringType(), containsNull=False)),
        StructField("peak_per_minute", LongType()),
        StructField("failures", LongType()),
        #: Failed first attempts beyond the usual number; their share of the first attempts, and the usual share: null
        #: if successful ones are not known.
        StructField("excess", LongType()),
        StructField("failure_rate", DoubleType()),
        StructField("usual_rate", DoubleType()),
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
    """Return the figures of a ladder, each with its 95 % interval."""
    return [StructField(f"{prefix}{name}{end}", DoubleType()) for name in FIGURES for end in ("", "_low", "_high")]


LADDER_ADVICE = StructType(
    [
        StructField("queue", StringType()),
        StructField("task", StringType()),
        StructField("enough_data", BooleanType()),
        StructField("reason", StringType()),
        #: What would show more; null if the history shows enough.
        StructField("learn", StringType()),
        StructField("episodes", LongType()),
        StructField("recoveries", LongType()),
        StructField("current_ms", ArrayType(LongType(), containsNull=False)),
        StructField("advised_ms", ArrayType(LongType(), containsNull=False)),
        #: The best ladder found; null unless it failed its backtest, and is not advised for this reason.
        StructField("refused_ms", ArrayType(LongType(), containsNull=False)),
        #: Counted recoveries that ``advised_ms`` may lose.
        StructField("lost", LongType()),
        #: Failures with today's ladder of which ``current_*`` are counts; null if they are estimates.
        StructField("counted", LongType()),
        *_figures("current_"),
        *_figures("advised_"),
        #: What decides when a task recovers: ``time``, or the number of ``attempts``; null: the history does not show
        #: it. And the share of failures for which attempts count.
        StructField("model", StringType()),
        StructField("by_attempts_low", DoubleType()),
        StructField("by_attempts_high", DoubleType()),
        #: The failures of the last days, unknown to the advice, and the figures of both ladders on them.
        StructField("backtest_failures", LongType()),
        *[
            StructField(f"backtest_{which}_{name}", DoubleType())
            for which in ("current", "advised")
            for name in BACKTEST_FIGURES
        ],
    ]
)

EXCEPTION_ADVICE = StructType(
    [
        StructField("queue", StringType()),
        StructField("task", StringType()),
        StructField("exception_type", StringType()),
        StructField("kind", StringType()),
        StructField("failures", LongType()),
        StructField("recovered", LongType()),
        StructField("share_low", DoubleType()),
        StructField("share_high", DoubleType()),
        StructField("longest_s", DoubleType()),
        StructField("needless_ms", ArrayType(LongType(), containsNull=False)),
        StructField("retries", LongType()),
        StructField("wasted_ms", LongType()),
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

#: The day to which a row of a table belongs; the folders of the tables are ``<table>/day=YYYY-MM-DD/``.
DAY = StructField("day", DateType())
