"""The columns of the history files and of the tables of the analytics, in order. No I/O, no dependency.

The collector writes the history: one row per event, in ``day=YYYY-MM-DD/part-<uuid>.parquet``; the day is that of
``occurred_at`` in UTC. The pipeline reads it and writes the tables, the admin reads those. A table's files are in
``<table>/day=YYYY-MM-DD/``; every column of it can be null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Literal

#: The kinds of columns. ``time`` has microseconds and is in UTC; ``delays`` is a list of 64-bit integers, ``names`` one
#: of texts; ``episode`` is the struct `EPISODE_SO_FAR`.
Kind = Literal["text", "time", "int32", "int64", "float64", "flag", "delays", "names", "episode"]


@dataclass(frozen=True)
class Column:
    """A column of the files; ``required`` ones are never null. ``name`` is the field's name in `Event`."""

    name: str
    kind: Kind
    required: bool = False


COLUMNS = (
    Column("event_id", "text", required=True),
    Column("kind", "text", required=True),
    Column("occurred_at", "time", required=True),
    Column("task_id", "text"),
    Column("root_id", "text"),
    Column("task", "text", required=True),
    Column("queue", "text", required=True),
    Column("worker", "text", required=True),
    Column("generation", "int32", required=True),
    Column("attempt", "int32", required=True),
    Column("max_retries", "int32"),
    Column("tier", "int32"),
    Column("delay_ms", "int64"),
    Column("due_at", "time"),
    Column("first_failed_at", "time"),
    Column("started_at", "time"),
    Column("runtime_ms", "int64"),
    Column("exception_type", "text"),
    Column("exception_message", "text"),
    Column("fingerprint", "text"),
    Column("reason", "text"),
    Column("crashes", "int32", required=True),
    Column("ladder_ms", "delays", required=True),
    Column("ok_count", "int64"),
)


def day_folder(day: date) -> str:
    """Return the folder of a day, or of an event's moment (UTC), such as ``day=2026-01-31``."""
    return f"day={day.isoformat()[:10]}"


#: Percentiles of the time to recovery, as shares.
PERCENTILES = {"p25_s": 0.25, "median_s": 0.5, "p75_s": 0.75, "p95_s": 0.95, "p99_s": 0.99}
#: Times to recovery in seconds.
TIMES = ("mean_s", *PERCENTILES)
#: The figures of a ladder, in the order of the columns. A column with the end of a 95 % interval has its suffix.
FIGURES = ("recovery", "attempts", *TIMES, "exhausted")
ENDS = ("", "_low", "_high")
#: The figures that a backtest compares; they have no intervals.
BACKTEST_FIGURES = ("recovery", "attempts", "mean_s", "p95_s", "exhausted")

#: The values of ``scope`` in ``recovery_curve``.
TASK, EXCEPTION = "task", "exception"
#: The values of ``kind`` in ``exception_advice``.
GIVE_UP, FEWER_TIERS = "give_up", "fewer_tiers"


def _figures(prefix: str) -> dict[str, Kind]:
    """Return the columns of a ladder's figures, each with its 95 % interval."""
    return {f"{prefix}{name}{end}": "float64" for name in FIGURES for end in ENDS}


#: A failure episode at the end of an attempt: its origin, the exception of its first failure, the known failed attempts
#: and their runtimes, the time for which the failure certainly lasted, the sum of the planned delays before this
#: attempt (null if one is not known), and how many of them were exact delays instead of tiers.
EPISODE_SO_FAR: Mapping[str, Kind] = {
    "first_failed_at": "time", "exception_type": "text", "failed_attempts": "int32", "wasted_ms": "int64",
    "low_seconds": "float64", "waited_ms": "int64", "exact_waits": "int32",
}  # fmt: skip

TABLES: Mapping[str, Mapping[str, Kind]] = {
    # Rows that no table counts, as JSON, with their file and the reason.
    "quarantine": {"reason": "text", "file": "text", "row": "text"},
    # One row per attempt of a retried task: failed ones (``parked``, ``exhausted``) and successful ones
    # (``recovered``); and one per task that was discarded while it waited (``discarded``), which is not an attempt but
    # ends its failure episode. ``task_id`` is never null: a task without an id has the id of its event.
    "attempts": {
        "task_id": "text", "generation": "int32", "attempt": "int32", "task": "text", "queue": "text",
        "worker": "text", "outcome": "text", "ended_at": "time", "runtime_ms": "int64", "exception_type": "text",
        "fingerprint": "text", "exception_message": "text", "reason": "text", "ladder_ms": "delays",
        "max_retries": "int32",
        # Where the task waited before this attempt: null for a first attempt, or if that event is not known.
        "tier": "int32", "delay_ms": "int64", "previous_exception_type": "text",
        # Seconds from the end of the first failure to the start of this attempt, and of the failed attempt before it;
        # they never decrease from attempt to attempt, even if the workers' clocks differ.
        "t_seconds": "float64", "previous_t_seconds": "float64",
        # Null if the attempt belongs to no failure episode: nothing failed before it, or the episode was already over.
        # A replay that succeeds at once has one: it ends the failure for which the task was exhausted.
        "episode": "episode",
    },
    # One row per task (and replay of it) from its first failure to its end. ``outcome`` is ``recovered``,
    # ``exhausted``, ``discarded`` or ``open`` (still waiting at the end of the days that were read; never written).
    "episodes": {
        "task_id": "text", "generation": "int32", "task": "text", "queue": "text", "exception_type": "text",
        "outcome": "text", "reason": "text", "first_failed_at": "time", "ended_at": "time", "failed_attempts": "int32",
        "wasted_ms": "int64",
        # The failure ended after ``low_seconds``, by ``high_seconds`` at the latest; null: its end was not observed.
        "low_seconds": "float64", "high_seconds": "float64", "ladder_ms": "delays",
        # Retries that the task has; null: no limit.
        "max_retries": "int32",
        # The sum of the planned delays before the last attempt; null: one is not known, or the task was discarded. And
        # how many of these delays were exact ones instead of tiers.
        "waited_ms": "int64", "exact_waits": "int32",
    },
    # The outcomes of attempts after a wait in one queue; ``tier`` null is an exact delay.
    "tier_outcomes": {
        "task": "text", "queue": "text", "exception_type": "text", "tier": "int32", "delay_ms": "int64",
        "parked": "int64", "recovered": "int64", "exhausted": "int64", "rate": "float64", "rate_low": "float64",
        "rate_high": "float64",
        # How many independent tasks would vary as much as those of this day: those of one hour can be of one outage.
        "independent": "float64", "wasted_ms": "int64",
    },
    # The share of failure episodes that have recovered by a time after their start, for a task or an exception.
    "recovery_curve": {
        "scope": "text", "name": "text", "t_seconds": "float64", "recovered_share": "float64", "share_low": "float64",
        "share_high": "float64", "episodes": "int64", "censored": "int64",
    },
    # Bursts of failures.
    "incidents": {
        "started_at": "time", "ended_at": "time", "queues": "names", "tasks": "names", "exceptions": "names",
        "peak_per_minute": "int64", "failures": "int64",
        # Failed first attempts beyond the usual number; their share of the first attempts, and the usual share: null
        # if successful ones are not known.
        "excess": "int64", "failure_rate": "float64", "usual_rate": "float64",
        # ``recovered_share`` is null if no task has recovered or is exhausted.
        "tasks_touched": "int64", "recovered_share": "float64", "wasted_ms": "int64",
    },
    "failure_groups": {
        "fingerprint": "text", "exception_type": "text", "exception_message": "text", "tasks": "names",
        "failures": "int64", "tasks_touched": "int64", "exhausted": "int64", "first_seen": "time", "last_seen": "time",
    },
    "hourly": {
        "hour": "time", "queue": "text", "task": "text", "first_attempts": "int64", "failures": "int64",
        "parked": "int64", "recovered": "int64", "exhausted": "int64",
    },
    # The present ladder of a queue, or of one task in it (``task`` null: the whole queue), and the advised one.
    "ladder_advice": {
        "queue": "text", "task": "text", "enough_data": "flag", "reason": "text",
        # What would show more; null if the history shows enough.
        "learn": "text", "episodes": "int64", "recoveries": "int64", "current_ms": "delays", "advised_ms": "delays",
        # The best ladder found; null unless it failed its backtest, and is not advised for this reason.
        "refused_ms": "delays",
        # Counted recoveries that ``advised_ms`` may lose.
        "lost": "int64",
        # Failures with today's ladder of which ``current_*`` are counts; null if they are estimates.
        "counted": "int64", **_figures("current_"), **_figures("advised_"),
        # What decides when a task recovers: ``time``, or the number of ``attempts``; null: the history does not show
        # it. And the share of failures for which attempts count.
        "model": "text", "by_attempts_low": "float64", "by_attempts_high": "float64",
        # The failures of the last days, unknown to the advice, and the figures of both ladders on them.
        "backtest_failures": "int64",
        **{f"backtest_{which}_{name}": "float64" for which in ("current", "advised") for name in BACKTEST_FIGURES},
    },
    # An exception of a task that no retry helps, or that needs no long tier.
    "exception_advice": {
        "queue": "text", "task": "text", "exception_type": "text", "kind": "text", "failures": "int64",
        "recovered": "int64",
        # The 95 % interval of the share that recovers.
        "share_low": "float64", "share_high": "float64",
        # The time within which all recovered, or after which the last attempt came; and the tiers that none needed.
        "longest_s": "float64", "needless_ms": "delays",
        # The retries and the worker time that giving up at once would have saved.
        "retries": "int64", "wasted_ms": "int64",
    },
    # The estimated result of a ladder that was passed as an option.
    "what_if": {
        "queue": "text", "ladder_ms": "delays", "enough_data": "flag", "reason": "text", "episodes": "int64",
        **_figures(""),
    },
}  # fmt: skip
