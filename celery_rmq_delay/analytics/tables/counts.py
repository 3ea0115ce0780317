"""Counts of attempts, made where the attempts are: whole tasks are together there, so each can be counted once.

Spark moves the ids of all tasks of a day to count them. These counts are a row per key and some 100,000 attempts, or
one per failure if each has a fingerprint of its own; the tables sum them up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    DataType,
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
from ..estimate.lateness import EARLY_S, Early
from .along import FAILED, changes_of, flags, numbers, valid, where

_Values = npt.NDArray[Any]

#: What a row counts: waits, failures with a fingerprint, attempts of an hour, successful first attempts of a minute,
#: retries that ended too early, and events.
WAITS, FAILURES, HOURS, SUCCESSES, CLOCKS, EVENTS = "waits", "failures", "hours", "successes", "clocks", "events"

_TEXTS = ("task", "queue", "exception_type", "fingerprint", "exception_message", "previous_worker", "worker")
_NUMBERS = (
    *("first_attempts", "failures", "parked", "recovered", "exhausted", "tasks_touched", "wasted_ms"),
    *("events", "copies", "retries", "early", "early_ms"),
)

#: ``minute``: minutes since the epoch; for `HOURS` and `WAITS` that in which the hour begins. Each count has the
#: columns that its table needs, the others are null.
_COLUMNS: dict[str, DataType] = {
    "of": StringType(),
    "day": DateType(),
    "minute": LongType(),
    **dict.fromkeys(_TEXTS, StringType()),
    "tier": IntegerType(),
    "delay_ms": LongType(),
    **dict.fromkeys(("first_seen", "last_seen"), TimestampType()),
    **dict.fromkeys(_NUMBERS, LongType()),
}
COUNTS = StructType([StructField(name, kind) for name, kind in _COLUMNS.items()])

#: Columns of the attempts that each count needs.
_OF_WAITS = (
    *("task_number", "generation", "attempt", "outcome", "runtime_ms", "ended_at"),
    *("day", "task", "queue", "previous_exception_type", "tier", "delay_ms"),
)
_SAMPLE = ("exception_type", "exception_message")
_OF_FAILURES = ("task_number", "outcome", "ended_at", "day", "fingerprint", "task", *_SAMPLE)
_OF_HOURS = ("generation", "attempt", "outcome", "ended_at", "queue", "task")

#: Every message can have another exact delay: they are grouped by this many leading digits of their milliseconds.
_DIGITS = 2

_OF_CLOCKS = ("task_number", "generation", "attempt", "worker", "ended_at", "delay_ms", "runtime_ms")

_US_PER_MINUTE = 60_000_000
_MINUTES_PER_HOUR = 60

#: Pairs of workers with the most early retries.
_MOST_PAIRS = 10_000

#: Keys are combined to numbers below this one.
_MOST_CODES = 2**62


def of(counts: DataFrame, what: str) -> DataFrame:
    """Return the counts of one kind."""
    return counts.where(F.col("of") == what)


def counted_events(counts: DataFrame) -> tuple[int, int]:
    """Return the number of events, and that of their copies."""
    events, copies = of(counts, EVENTS).agg(F.sum("events"), F.sum("copies")).collect()[0]
    return events or 0, copies or 0


def early_retries(counts: DataFrame) -> tuple[int, list[Early]]:
    """Return how many retries there are with known delays, and by workers those that ended too early."""
    every = of(counts, CLOCKS)
    retries = every.agg(F.sum("retries")).collect()[0][0] or 0
    # The median over parts of the history: a clock that was wrong for a moment is not wrong by this much.
    sums = F.sum("early").alias("early"), F.expr("percentile(early_ms, 0.5)").alias("ms")
    pairs = every.where(F.col("early") > 0).groupBy("previous_worker", "worker").agg(*sums)
    rows = pairs.orderBy(F.desc("early"), "previous_worker", "worker").limit(_MOST_PAIRS).collect()
    return retries, [Early(row["previous_worker"], row["worker"], row["early"], row["ms"] / 1000) for row in rows]


def counts_of(attempts: pa.Table) -> Iterator[pa.Table]:
    """Yield the counts (some columns of `COUNTS`) of attempts of whole tasks: those of a task are together."""
    is_failed, is_attempt = _is(attempts, *FAILED), ~_is(attempts, DISCARDED)
    numbered = attempts.append_column("task_number", pa.array(np.cumsum(changes_of(attempts["task_id"]))))
    is_waited = is_attempt & (valid(attempts["tier"]) | valid(attempts["delay_ms"]))
    yield _waits(where(numbered.select(_OF_WAITS), is_waited))
    yield _failures(where(numbered.select(_OF_FAILURES), is_failed & valid(attempts["fingerprint"])))
    yield _hours(where(numbered.select(_OF_HOURS), is_attempt))
    # Whether all waits before an attempt are known, and none was cut short by a person.
    knows_waits = valid(attempts["episode"].combine_chunks().field("waited_ms")) & valid(attempts["delay_ms"])
    yield _clocks(numbered.select(_OF_CLOCKS), is_attempt & knows_waits)


def successes_of(rollups: pa.Table) -> pa.Table:
    """Return the counts of rollups by the minute of ``ended_at``, in which they began."""
    timed = rollups.append_column("minute", pa.array(numbers(rollups["ended_at"]) // _US_PER_MINUTE))
    found = _Groups(timed, ("minute", "queue", "task"))
    return found.summed(SUCCESSES, {"first_attempts": numbers(rollups["ok_count"])})


def events_of(events: int, copies: int) -> pa.Table:
    """Return the count of events, and of their copies that were left out."""
    return pa.table({"of": [EVENTS], "events": [events], "copies": [copies]})


def _waits(waited: pa.Table) -> pa.Table:
    """Count each task once a day and key, with its last outcome in it and the hour of this; see `tier_outcomes`."""
    delay = numbers(waited["delay_ms"])
    delay = np.where(valid(waited["tier"]), delay, _rounded(delay))
    keyed = waited.drop_columns(["delay_ms"]).rename_columns({"previous_exception_type": "exception_type"})
    keyed = keyed.append_column("delay_ms", pa.array(delay, mask=~valid(waited["delay_ms"])))
    key = ("day", "task", "queue", "exception_type", "tier", "delay_ms")
    tasks = _Groups(keyed, (*key, "task_number", "generation"))
    # One number, of which the largest is that of the last attempt.
    code = np.where(_is(waited, RECOVERED), 1, np.where(_is(waited, EXHAUSTED), 2, 0))
    last: Ints = tasks.reduced(np.maximum, numbers(waited["attempt"]) * 3 + code) % 3
    hour = tasks.reduced(np.maximum, _hour_of(waited["ended_at"]))
    wasted = tasks.reduced(np.add, np.where(_is(waited, *FAILED), numbers(waited["runtime_ms"]), 0))
    sums = {"parked": np.ones_like(last), "recovered": last == 1, "exhausted": last == 2, "wasted_ms": wasted}
    timed = keyed.select(key).take(tasks.firsts).append_column("minute", pa.array(hour))
    return _Groups(timed, (*key, "minute")).summed(WAITS, sums)


def _failures(failed: pa.Table) -> pa.Table:
    """Count by day, fingerprint and task, with exception and message of the first failure; see `failure_groups`."""
    found = _Groups(failed, ("day", "fingerprint", "task"))
    ended, time = numbers(failed["ended_at"]), failed["ended_at"].type
    # Each task of a group once, also if its id has several names.
    is_first = np.zeros(len(failed), dtype=np.int64)
    is_first[_Groups(failed, ("day", "fingerprint", "task_number")).firsts] = 1
    sums = {"failures": np.ones_like(ended), "exhausted": _is(failed, EXHAUSTED), "tasks_touched": is_first}
    first_seen, last_seen = (found.reduced(which, ended) for which in (np.minimum, np.maximum))
    samples = _samples(found, failed, ended == first_seen[found.numbers])
    more = {"first_seen": pa.array(first_seen, time), "last_seen": pa.array(last_seen, time)}
    return found.summed(FAILURES, sums, {**{name: samples[name] for name in _SAMPLE}, **more})


def _samples(found: _Groups, failed: pa.Table, is_earliest: Flags) -> pa.Table:
    """Return the texts of the earliest failure of each group; of several those that are first in order."""
    chosen = np.flatnonzero(is_earliest)
    texts = failed.select(_SAMPLE).take(chosen)
    columns = [[(text is not None, text) for text in column] for column in texts.to_pydict().values()]
    ordered = sorted(zip(found.numbers[chosen].tolist(), *columns, range(len(chosen)), strict=True), reverse=True)
    first = {group: at for group, _, _, at in ordered}
    return texts.take(np.array([first[group] for group in range(len(first))], dtype=np.int64))


def _hours(attempts: pa.Table) -> pa.Table:
    """Count the attempts by the hour in which they ended; see `hourly`."""
    is_failed = _is(attempts, *FAILED)
    is_first = (numbers(attempts["attempt"]) == 0) & (numbers(attempts["generation"]) == 0)
    outcomes = {name: _is(attempts, name) for name in (PARKED, RECOVERED, EXHAUSTED)}
    timed = attempts.append_column("minute", pa.array(_hour_of(attempts["ended_at"])))
    found = _Groups(timed, ("minute", "queue", "task"))
    return found.summed(HOURS, {"first_attempts": is_failed & is_first, "failures": is_failed, **outcomes})


def _hour_of(ended_at: pa.ChunkedArray) -> Ints:
    """Return the minute in which the hour of each time begins."""
    return np.asarray(numbers(ended_at) // (_MINUTES_PER_HOUR * _US_PER_MINUTE) * _MINUTES_PER_HOUR)


def _clocks(attempts: pa.Table, is_timed: Flags) -> pa.Table:
    """Count the retries, and by the workers of two attempts those that ended too early: see `offsets`."""
    ended, runtime = numbers(attempts["ended_at"]), numbers(attempts["runtime_ms"])
    previous = np.maximum(np.arange(len(attempts)) - 1, 0)
    run = [numbers(attempts[name]) for name in ("task_number", "generation")]
    follows = np.all([each == each[previous] for each in run], axis=0)
    follows &= numbers(attempts["attempt"]) == numbers(attempts["attempt"])[previous] + 1
    is_timed = is_timed & follows
    late_ms = (ended - ended[previous]) // 1000 - numbers(attempts["delay_ms"]) - runtime
    is_early = is_timed & (late_ms < -1000 * EARLY_S)
    named = attempts.select(["worker"]).append_column("previous_worker", attempts["worker"].take(pa.array(previous)))
    found = _Groups(where(named, is_early), ("previous_worker", "worker"))
    early_ms = -late_ms[is_early]
    most = found.reduced(np.maximum, early_ms)
    pairs = found.summed(CLOCKS, {"early": np.ones_like(early_ms)}, {"early_ms": pa.array(most)})
    timed = int(is_timed.sum())
    every = pa.table({"of": [CLOCKS] * (timed > 0), "retries": [timed] * (timed > 0)})
    return pa.concat_tables([pairs, every], promote_options="default")


class _Groups:
    """The groups of rows with the same key. ``numbers`` is the group of each row, ``firsts`` the first row of each."""

    def __init__(self, rows: pa.Table, key: Sequence[str]) -> None:
        encoded = pa.array(_codes(rows, key)).dictionary_encode()
        self.numbers = numbers(encoded.indices)
        self._size = len(encoded.dictionary)
        self.firsts = np.empty(self._size, dtype=np.int64)
        self.firsts[self.numbers[::-1]] = np.arange(len(rows))[::-1]
        self._keys = rows.select(list(key))

    def reduced(self, how: np.ufunc, values: _Values) -> Ints:
        """Return the values of each group combined: their sum, minimum or maximum."""
        each = np.asarray(values, dtype=np.int64)
        found = np.zeros(self._size, dtype=np.int64) if how is np.add else each[self.firsts]
        how.at(found, self.numbers, each)
        return found

    def summed(self, what: str, values: Mapping[str, _Values], more: Mapping[str, Any] | None = None) -> pa.Table:
        """Return a row for each group: its key, and the sums of the values. ``more``: columns with a value for each."""
        keys = self._keys.take(self.firsts)
        sums = {name: self.reduced(np.add, each) for name, each in values.items()}
        marked = {"of": pa.array([what] * len(keys), pa.string()), **{name: keys[name] for name in keys.column_names}}
        return pa.table({**marked, **sums, **(more or {})})


def _codes(rows: pa.Table, key: Sequence[str]) -> Ints:
    """Return a number for each row, the same for rows with the same key."""
    found, most = np.zeros(len(rows), dtype=np.int64), 1
    for name in key:
        encoded = rows[name].combine_chunks().dictionary_encode()
        size = len(encoded.dictionary) + 1
        if most * size > _MOST_CODES:
            found = np.unique(found, return_inverse=True)[1]
            most = len(rows)
        found = found * size + np.where(valid(encoded), numbers(encoded.indices), size - 1)
        most *= size
    return found


def _rounded(milliseconds: Ints) -> Ints:
    """Return the numbers rounded down to `_DIGITS` digits."""
    unit = np.ones_like(milliseconds)
    while (is_long := milliseconds // unit >= 10**_DIGITS).any():
        unit = np.where(is_long, unit * 10, unit)
    return np.asarray(milliseconds - milliseconds % unit)


def _is(attempts: pa.Table, *outcomes: str) -> Flags:
    return flags(compute.is_in(attempts["outcome"], pa.array(outcomes)))
