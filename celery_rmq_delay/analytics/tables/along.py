"""The rows of ``attempts`` from the columns of events: what depends on the earlier attempts of a task.

Pure numpy, pandas and PyArrow, over many tasks at once. Windows of Spark take several times as long: they copy each row
several times, and each task is a window of a few rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import compute

from ...events.schema import DISCARDED, EXHAUSTED, PARKED, RECOVERED, REQUEUED
from ..estimate.intervals import Flags, Floats, Ints

#: Outcomes of failed attempts, and all that end a failure episode.
FAILED = (PARKED, EXHAUSTED)
ENDS = (RECOVERED, EXHAUSTED, DISCARDED)

#: Reasons of exhausted tasks whose last attempt did not run: their end is no evidence about the failure.
NOT_RUN = ("expired", "unknown_task", "undecodable")

#: If an attempt has several events, the one that comes last here is its outcome.
_RANKED = (PARKED, EXHAUSTED, RECOVERED, DISCARDED)

#: Rows that are computed at once, if the last task of them has no more.
_ROWS = 100_000
_US_PER_DAY = 86_400_000_000


def whole_tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield tables of about 100,000 rows with all rows of their tasks, which are together in ``batches``."""
    waiting: list[pa.RecordBatch] = []
    rows, wanted = 0, _ROWS
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= wanted:
            table = pa.Table.from_batches(waiting).combine_chunks()
            end = int(np.flatnonzero(changes_of(table["task_id"]))[-1])
            if end:
                yield table.slice(0, end)
            waiting = table.slice(end).to_batches()
            rows -= end
            # Twice as many rows each time, so that a task of millions of attempts is not copied with each batch.
            wanted = max(_ROWS, 2 * rows)
    if rows:
        yield pa.Table.from_batches(waiting).combine_chunks()


def unique(events: pa.Table) -> tuple[pa.Table, int]:
    """Return the events of whole tasks (sorted by `cleaning.by_task`) without copies, and how many copies there are."""
    is_first = changes_of(events["task_id"]) | changes_of(events["event_id"])
    copies = int(len(is_first) - is_first.sum())
    return where(events, is_first), copies


def attempts_of(events: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the attempts of whole tasks from events with an outcome or of a requeue, by task and ``event_id``."""
    tasks: Ints = np.cumsum(changes_of(events["task_id"]), dtype=np.int64)
    requeued = _requeued(events, tasks)
    has_outcome = ~flags(compute.equal(events["outcome"], REQUEUED))
    events, tasks = where(events, has_outcome), tasks[has_outcome]
    rows, waits = _merged(events, tasks)
    found = _Along(events, tasks, rows, waits, requeued)
    computed = found.columns()
    arrays = [computed[each.name] if each.name in computed else found.taken(each.name) for each in schema]
    table = pa.table([each.cast(field.type) for each, field in zip(arrays, schema, strict=True)], schema)
    # A task that is discarded after its end, or before its first failure, ends no failure episode.
    return where(table, ~found.is_discard | found.is_of_episode)


def _requeued(events: pa.Table, tasks: Ints) -> set[tuple[int, int, int]]:
    """Return the task, generation and attempt after which a person requeued it: if it waited, it waits no longer."""
    rows = np.flatnonzero(flags(compute.equal(events["outcome"], REQUEUED)))
    generation, attempt = (numbers(events[name])[rows].tolist() for name in ("generation", "attempt"))
    return set(zip(tasks[rows].tolist(), generation, attempt, strict=True))


def _merged(events: pa.Table, tasks: Ints) -> tuple[Ints, Ints]:
    """Return by attempt, in order, the row of its outcome and that of its first parked event (-1: none)."""
    outcome = _codes(events["outcome"], _RANKED)
    is_discard = outcome == _RANKED.index(DISCARDED)
    generation, attempt, ended = (numbers(events[name]) for name in ("generation", "attempt", "ended_at"))
    key = (tasks, generation, attempt, is_discard)
    order = np.lexsort((_sorted_codes(events["worker"]), _sorted_codes(events["kind"]), ended, -outcome, *key[::-1]))
    starts = np.flatnonzero(_changes(*[each[order] for each in key]))
    first_parked = _first_of_each(outcome[order] == _RANKED.index(PARKED), starts)
    return order[starts], np.where(first_parked < 0, -1, order[first_parked])


class _Along:
    """The attempts ``rows`` of events, in order, with what is known along each task and generation (a *run*).

    ``waits``: the row of the event that parked the task after each attempt; -1: none. ``requeued``: the attempts (task,
    generation, attempt) after which a person did not let it wait.
    """

    def __init__(
        self, events: pa.Table, tasks: Ints, rows: Ints, waits: Ints, requeued: set[tuple[int, int, int]]
    ) -> None:
        self._events, self._rows = events, pa.array(rows)
        size = len(rows)
        self._index = np.arange(size)
        outcome = _codes(self.taken("outcome"), _RANKED)
        self.is_discard: Flags = outcome == _RANKED.index(DISCARDED)
        self._is_failed = np.isin(outcome, [_RANKED.index(each) for each in FAILED])
        (generation, self._attempt) = (numbers(self.taken(name)) for name in ("generation", "attempt"))
        is_start = _changes(tasks[rows], generation)
        starts = np.flatnonzero(is_start)
        self._run = np.cumsum(is_start) - 1
        self._start = starts[self._run]
        self._ended = numbers(self.taken("ended_at"))
        self._runtime = numbers(self.taken("runtime_ms"))
        self._origin, self._has_origin = self._origins(starts)
        is_end = np.isin(outcome, [_RANKED.index(each) for each in ENDS])
        #: Whether the failure episode was over before the attempt.
        self._is_over = self._sum_before(is_end) > 0
        is_timed = ~self._is_over & ~self.is_discard & self._has_origin
        # What an attempt finds when it starts decides its outcome, however long it runs.
        elapsed = np.maximum((self._ended - 1000 * self._runtime - self._origin) / 1e6, 0.0)
        self._seconds: Floats = np.where(is_timed, elapsed, np.nan)
        self._counts = self._is_failed & ~self._is_over
        self._failed_attempts = self._sum_so_far(self._counts)
        is_replay = (generation > 0) & (outcome == _RANKED.index(RECOVERED))
        self.is_of_episode = ~self._is_over & ((self._attempt > 0) | (self._failed_attempts > 0) | is_replay)
        self._wait = pa.array(waits, mask=waits < 0)
        self._is_cut: Flags = np.zeros(size, dtype=bool)
        if requeued:
            keys = zip(tasks[rows].tolist(), generation.tolist(), self._attempt.tolist(), strict=True)
            self._is_cut[:] = [each in requeued for each in keys]

    def taken(self, name: str) -> pa.ChunkedArray:
        """Return a column of the attempts."""
        return self._events[name].take(self._rows)

    def columns(self) -> dict[str, pa.Array]:
        """Return the computed columns of the table."""
        previous = self._previous()
        longest = self._longest(self._seconds)
        before = np.where(self._index > self._start, np.roll(longest, 1), np.nan)
        delay, tier = (self._events[name].take(self._wait) for name in ("delay_ms", "tier"))
        return {
            "tier": tier.take(previous),
            "delay_ms": delay.take(previous),
            "previous_exception_type": self.taken("exception_type").take(previous),
            "t_seconds": pa.array(longest, from_pandas=True),
            "previous_t_seconds": pa.array(before, mask=self._is_over | ~valid(previous) | np.isnan(before)),
            "episode": self._episode(delay, tier),
            "day": pa.array((self._ended // _US_PER_DAY).astype(np.int32), pa.date32()),
        }

    def _origins(self, starts: Ints) -> tuple[Ints, Flags]:
        """Return the end of the first failure of each run, as seen or as recorded later, and whether it is known."""
        recorded = self.taken("first_failed_at")
        is_first, is_recorded = self._is_failed & (self._attempt == 0), valid(recorded)
        known = np.where(is_recorded, numbers(recorded), self._ended)
        first = _first_of_each(is_recorded | is_first, starts)[self._run]
        return known[first], first >= 0

    def _previous(self) -> pa.Array:
        """Return the index of the attempt before each one, null if it is not known or did not fail."""
        index = np.where(self.is_discard, -1, self._index)
        last = np.concatenate([[-1], np.maximum.accumulate(index)[:-1]]) if len(index) else index
        is_known = (last >= self._start) & (self._attempt[last] == self._attempt - 1) & self._is_failed[last]
        return pa.array(last, mask=~is_known)

    def _episode(self, delay: pa.ChunkedArray, tier: pa.ChunkedArray) -> pa.Array:
        """Return the failure episodes up to each attempt."""
        exception, reason = self.taken("exception_type"), self.taken("reason")
        starts = np.unique(self._start)
        first = _first_of_each(self._counts & valid(exception), starts)[self._run]
        not_run = flags(compute.is_in(reason, pa.array(NOT_RUN)))
        has_run = self._is_failed & ~not_run & ~np.isnan(self._seconds)
        is_waited = valid(delay) & ~self._is_cut
        waits = self._sum_before(is_waited)
        knows_waits = (waits == self._attempt) & (waits > 0) & ~self.is_discard
        is_exact = is_waited & ~valid(tier)
        fields: dict[str, Any] = {
            "first_failed_at": pa.array(self._origin, pa.timestamp("us", "UTC"), mask=~self._has_origin),
            "exception_type": exception.take(pa.array(first, mask=(first < 0) | (first > self._index))),
            "failed_attempts": pa.array(self._failed_attempts.astype(np.int32)),
            "wasted_ms": pa.array(self._sum_so_far(np.where(self._counts, self._runtime, 0))),
            "low_seconds": pa.array(self._longest(np.where(has_run, self._seconds, 0.0))),
            "waited_ms": pa.array(self._sum_before(numbers(delay)), mask=~knows_waits),
            "exact_waits": pa.array(self._sum_before(is_exact).astype(np.int32)),
        }
        arrays = [each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in fields.values()]
        return pa.StructArray.from_arrays(arrays, names=list(fields), mask=pa.array(~self.is_of_episode))

    def _sum_so_far(self, values: Ints | Flags) -> Ints:
        total: Ints = np.cumsum(values, dtype=np.int64)
        before: Ints = (total - values)[self._start]
        return np.asarray(total - before)

    def _sum_before(self, values: Ints | Flags) -> Ints:
        return np.asarray(self._sum_so_far(values) - values)

    def _longest(self, seconds: Floats) -> Floats:
        """Return the longest seconds of the run so far; NaN where there are none."""
        return np.asarray(pd.Series(seconds).groupby(self._run).cummax(), dtype=np.float64)


def _first_of_each(holds: Flags, starts: Ints) -> Ints:
    """Return the first index of each segment at which something holds; -1 for none."""
    if not len(starts):
        return np.empty(0, dtype=np.int64)
    size = len(holds)
    found = np.minimum.reduceat(np.where(holds, np.arange(size), size), starts)
    return np.where(found == size, -1, found)


def _changes(*columns: Any) -> Flags:
    """Return where a row differs from the row before it; the first one does."""
    found = np.ones(len(columns[0]), dtype=bool)
    if len(found):
        found[1:] = np.any([each[1:] != each[:-1] for each in columns], axis=0)
    return found


def where(rows: pa.Table, holds: Flags) -> pa.Table:
    """Return the rows where ``holds`` is true, without a copy if all are."""
    return rows if holds.all() else rows.filter(pa.array(holds))


def changes_of(ids: pa.ChunkedArray) -> Flags:
    """Return which ids differ from the one before; the first one does."""
    found = np.ones(len(ids), dtype=bool)
    if len(found) > 1:
        found[1:] = flags(compute.not_equal(ids.slice(1), ids.slice(0, len(found) - 1)))
    return found


def _codes(values: pa.ChunkedArray, names: tuple[str, ...]) -> Ints:
    """Return the place of each value in ``names``."""
    return numbers(compute.index_in(values, pa.array(names)))


def _sorted_codes(values: pa.ChunkedArray) -> Ints:
    """Return numbers in the order of the texts' bytes; nulls come first."""
    encoded = values.combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    place = {name: number for number, name in enumerate(sorted(names, key=str.encode))}
    codes = np.array([place[name] for name in names], dtype=np.int64)
    indices = numbers(encoded.indices)
    return np.where(valid(encoded), codes[indices] if len(codes) else indices, -1)


def numbers(values: Any) -> Ints:
    """Return the values as 64-bit numbers, times as microseconds; 0 for nulls."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    return np.asarray(compute.fill_null(values.cast(pa.int64()), 0))


def valid(values: Any) -> Flags:
    """Return which values are not null."""
    return flags(compute.is_valid(values))


def flags(values: Any) -> Flags:
    """Return truth values as a NumPy array."""
    return np.asarray(values, dtype=bool)
