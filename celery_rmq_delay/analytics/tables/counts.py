"""Counts of attempts, made where the attempts are: whole tasks are together there, so each can be counted once.

A count of the tasks of a day made by Spark moves the ids of all of them. These counts are a row per key and some
100,000 attempts; the tables sum them up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ...events.schema import DISCARDED, EXHAUSTED, PARKED, RECOVERED
from ..estimate.intervals import Flags, Ints
from .along import FAILED, changes_of, flags, numbers, valid

#: What a row counts: waits, failures with a fingerprint, attempts of an hour, successful first attempts of a minute.
WAITS, FAILURES, HOURS, SUCCESSES = "waits", "failures", "hours", "successes"

_NUMBERS = ("first_attempts", "failures", "parked", "recovered", "exhausted", "tasks_touched", "wasted_ms")

#: ``minute``: minutes since the epoch; for `HOURS` that in which the hour begins. Each count has the columns that its
#: table needs, the others are null.
COUNTS = StructType(
    [
        StructField("of", StringType()),
        StructField("day", DateType()),
        StructField("minute", LongType()),
        *[StructField(name, StringType()) for name in ("task", "queue", "exception_type", "fingerprint")],
        StructField("exception_message", StringType()),
        StructField("tier", IntegerType()),
        StructField("delay_ms", LongType()),
        StructField("first_seen", TimestampType()),
        StructField("last_seen", TimestampType()),
        *[StructField(name, LongType()) for name in _NUMBERS],
    ]
)

#: Every message can have another exact delay: they are grouped by this many leading digits of their milliseconds.
_DIGITS = 2

#: Columns of the attempts that are counted or compared.
_NEEDED = (
    *("day", "task", "queue", "generation", "attempt", "outcome", "ended_at", "runtime_ms", "exception_type"),
    *("fingerprint", "exception_message", "tier", "delay_ms", "previous_exception_type"),
)

_US_PER_MINUTE = 60_000_000
_MINUTES = 60


def of(counts: DataFrame, what: str) -> DataFrame:
    """Return the counts of one kind."""
    return counts.where(F.col("of") == what)


def counts_of(attempts: pa.Table) -> Iterator[pa.Table]:
    """Yield the counts (some columns of `COUNTS`) of attempts of whole tasks: those of a task are together."""
    outcome = attempts["outcome"]
    is_failed, is_attempt = _is(outcome, *FAILED), ~_is(outcome, DISCARDED)
    marked = attempts.select(_NEEDED).append_column("is_failed", pa.array(is_failed))
    marked = marked.append_column("task_number", pa.array(np.cumsum(changes_of(attempts["task_id"]))))
    is_waited = is_attempt & (valid(attempts["tier"]) | valid(attempts["delay_ms"]))
    yield _waits(marked.filter(pa.array(is_waited)))
    yield _failures(marked.filter(pa.array(is_failed & valid(attempts["fingerprint"]))))
    yield _hours(marked.filter(pa.array(is_attempt)))


def successes_of(rollups: pa.Table) -> pa.Table:
    """Return the counts of rollups by the minute of ``ended_at``, in which they began."""
    minute = numbers(rollups["ended_at"]) // _US_PER_MINUTE
    found = pa.table({"minute": minute, **_columns(rollups, "queue", "task"), "first_attempts": rollups["ok_count"]})
    return _marked(SUCCESSES, _sums(found, ("minute", "queue", "task"), ("first_attempts",)))


def _waits(waited: pa.Table) -> pa.Table:
    """Count each task once a day and key, with its last outcome in it; see `outcomes.tier_outcomes`."""
    outcome = waited["outcome"]
    # One number, of which the largest is that of the last attempt.
    code = np.where(_is(outcome, RECOVERED), 1, np.where(_is(outcome, EXHAUSTED), 2, 0))
    tier, delay = waited["tier"], numbers(waited["delay_ms"])
    rounded = np.where(valid(tier), delay, _rounded(delay))
    found = pa.table(
        {
            **_columns(waited, "day", "task", "queue", "tier", "task_number", "generation"),
            "exception_type": waited["previous_exception_type"],
            "delay_ms": pa.array(rounded, mask=~valid(waited["delay_ms"])),
            "last": numbers(waited["attempt"]) * 3 + code,
            "wasted_ms": np.where(flags(waited["is_failed"]), numbers(waited["runtime_ms"]), 0),
        }
    )
    key = ("day", "task", "queue", "exception_type", "tier", "delay_ms")
    each = _grouped(found, (*key, "task_number", "generation"), [("last", "max"), ("wasted_ms", "sum")])
    last = numbers(each["last_max"]) % 3
    ends = pa.table(
        {
            **_columns(each, *key),
            "parked": np.ones(len(last), dtype=np.int64),
            "recovered": (last == 1).astype(np.int64),
            "exhausted": (last == 2).astype(np.int64),
            "wasted_ms": each["wasted_ms_sum"],
        }
    )
    return _marked(WAITS, _sums(ends, key, ("parked", "recovered", "exhausted", "wasted_ms")))


def _failures(failed: pa.Table) -> pa.Table:
    """Count by day, fingerprint and task, with exception and message of the first failure; see `failure_groups`."""
    order = [(name, "ascending") for name in ("ended_at", "exception_type", "exception_message")]
    ordered = failed.take(compute.sort_indices(failed, sort_keys=order, null_placement="at_start"))
    key = ("day", "fingerprint")
    index = np.arange(len(ordered), dtype=np.int64)
    numbered = pa.table({**_columns(ordered, *key, "task", "task_number"), "index": index})
    # Each task of a group once, also if its id has several names.
    is_first = np.zeros(len(ordered), dtype=np.int64)
    is_first[numbers(_grouped(numbered, (*key, "task_number"), [("index", "min")])["index_min"])] = 1
    counted = {
        **_columns(numbered, *key, "task", "index"),
        "ended_at": ordered["ended_at"],
        "failures": np.ones(len(ordered), dtype=np.int64),
        "exhausted": _is(ordered["outcome"], EXHAUSTED).astype(np.int64),
        "tasks_touched": is_first,
    }
    sums = ("failures", "exhausted", "tasks_touched")
    found = _grouped(
        pa.table(counted),
        (*key, "task"),
        [("index", "min"), ("ended_at", "min"), ("ended_at", "max"), *[(name, "sum") for name in sums]],
    )
    first = found["index_min"]
    columns = {
        **_columns(found, *key, "task"),
        **{name: ordered[name].take(first) for name in ("exception_type", "exception_message")},
        "first_seen": found["ended_at_min"],
        "last_seen": found["ended_at_max"],
        **{name: found[f"{name}_sum"] for name in sums},
    }
    return _marked(FAILURES, pa.table(columns))


def _hours(attempts: pa.Table) -> pa.Table:
    """Count the attempts by the hour in which they ended; see `hourly.hourly`."""
    outcome, failed = attempts["outcome"], flags(attempts["is_failed"])
    is_first = (numbers(attempts["attempt"]) == 0) & (numbers(attempts["generation"]) == 0)
    holds: dict[str, Flags] = {
        "first_attempts": failed & is_first,
        "failures": failed,
        **{name: _is(outcome, name) for name in (PARKED, RECOVERED, EXHAUSTED)},
    }
    minute = numbers(attempts["ended_at"]) // (_MINUTES * _US_PER_MINUTE) * _MINUTES
    values = {name: each.astype(np.int64) for name, each in holds.items()}
    found = pa.table({"minute": minute, **_columns(attempts, "queue", "task"), **values})
    return _marked(HOURS, _sums(found, ("minute", "queue", "task"), tuple(holds)))


def _rounded(milliseconds: Ints) -> Ints:
    """Return the numbers rounded down to `_DIGITS` digits."""
    unit = np.ones_like(milliseconds)
    while (is_long := milliseconds // unit >= 10**_DIGITS).any():
        unit = np.where(is_long, unit * 10, unit)
    return np.asarray(milliseconds - milliseconds % unit)


def _is(outcome: pa.ChunkedArray, *names: str) -> Flags:
    return flags(compute.is_in(outcome, pa.array(names)))


def _columns(table: pa.Table, *names: str) -> dict[str, Any]:
    return {name: table[name] for name in names}


def _sums(table: pa.Table, key: Sequence[str], names: Sequence[str]) -> pa.Table:
    found = _grouped(table, key, [(name, "sum") for name in names])
    return pa.table({**_columns(found, *key), **{name: found[f"{name}_sum"] for name in names}})


def _grouped(table: pa.Table, key: Sequence[str], what: list[tuple[str, str]]) -> pa.Table:
    # Spark uses one process per core: more threads would only compete.
    return table.group_by(list(key), use_threads=False).aggregate(what)


def _marked(what: str, found: pa.Table) -> pa.Table:
    return found.append_column("of", pa.array([what] * len(found), pa.string()))
