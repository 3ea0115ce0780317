"""Attempts and counts are made from tables of whole tasks: however the tasks are divided, they are the same.

`tests/spark/test_reference.py` compares them with a reference.
"""

import random
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from celery_rmq_delay.analytics.storage.day_files import with_columns
from celery_rmq_delay.analytics.tables import along, counts
from tests.support.corpus import corpus
from tests.support.spark.columns import EVENTS, SCHEMA

COUNTED = to_arrow_schema(counts.COUNTS, timezone="UTC")
BEGAN = datetime(2026, 3, 2, tzinfo=timezone.utc)
#: Columns that are summed, and those of a group's first failure.
SUMS = ("first_attempts", "failures", "parked", "recovered", "exhausted", "tasks_touched", "wasted_ms")
FIRST = ("first_seen", "exception_type", "exception_message")
#: Values of columns that do not depend on the others.
VALUES: dict[str, list[Any]] = {
    "generation": [0, 0, 0, 1],
    "task": ["shop.pay", "shop.mail"],
    "queue": ["payments"],
    "worker": ["a", "b"],
    "tier": [1, 2, None],
    "delay_ms": [0, 99, 12_345, 10**12 + 7, None],
    "runtime_ms": [5, 10**12, None],
    "exception_type": ["Timeout", "Überlauf", None],
    "exception_message": ["a", "b", None],
    "fingerprint": ["f", "g", None],
    "ladder_ms": [[1_000]],
}


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(along, "_ROWS", 20)


def events(seed, tasks):
    """Events of tasks of up to 60 attempts, whose ids have several names; those of a task are together, by event id."""
    numbers = random.Random(seed)
    found: list[dict[str, object]] = []
    for task in range(tasks):
        for attempt in range(numbers.choice([1, 2, 3, 60])):
            outcomes = ("parked", "parked", "exhausted", "recovered", "discarded")
            for outcome in numbers.sample(outcomes, k=numbers.choice([1, 1, 2])):
                row: dict[str, object] = dict.fromkeys(EVENTS.names)
                row |= {"task_id": f"task-{task}", "event_id": f"{len(found):06}", "outcome": outcome, "kind": outcome}
                row |= {"attempt": attempt, "ended_at": BEGAN + timedelta(seconds=numbers.randrange(200_000))}
                found.append(row | {name: numbers.choice(values) for name, values in VALUES.items()})
    return pa.Table.from_pylist(found, EVENTS)


def batches(table, seed):
    numbers, at = random.Random(seed), 0
    while at < len(table):
        size = numbers.choice([1, 7, 40])
        yield from table.slice(at, size).combine_chunks().to_batches()
        at += size


@corpus("seed", range(20))
def test_tasks_are_never_divided_and_the_attempts_of_all_parts_are_those_of_the_whole_table(seed):
    table = events(seed, 60)
    parts = list(along.whole_tasks(batches(table, seed)))
    assert pa.concat_tables(parts).to_pylist() == table.to_pylist()
    of_parts = [set(each["task_id"].to_pylist()) for each in parts]
    assert len(parts) > 3
    assert sum(map(len, of_parts)) == len(set.union(*of_parts))
    made = [along.attempts_of(each, SCHEMA) for each in parts]
    assert pa.concat_tables(made).to_pylist() == along.attempts_of(table, SCHEMA).to_pylist()


@pytest.mark.slow
def test_a_task_of_many_attempts_is_copied_few_times(monkeypatch):
    copies: list[int] = []
    starts = along.changes_of

    def counted(ids):
        copies.append(len(ids))
        return starts(ids)

    monkeypatch.setattr(along, "changes_of", counted)
    table = pa.concat_tables([events(seed, 1).slice(0, 1) for seed in range(3_000)])
    (whole,) = along.whole_tasks(iter(table.to_batches()))
    assert len(whole) == 3_000
    assert sum(copies) < 3 * 3_000


def totals(tables):
    """Return the sums of counts by key, and the first failure of each group."""
    sums: Counter[Any] = Counter()
    first: dict[Any, Any] = {}
    for row in (row for each in tables for row in with_columns(each, COUNTED).to_pylist()):
        is_group = row["of"] == counts.FAILURES
        names = ("of", "day", "minute", "task", "queue", "fingerprint", "tier", "delay_ms")
        key = tuple(row[name] for name in (*names, *(() if is_group else ("exception_type",))))
        for name in SUMS:
            sums[key, name] += row[name] or 0
        if is_group:
            sample = [(row[name] is not None, row[name]) for name in FIRST]
            first[key] = min(first.get(key, sample), sample, key=lambda each: [(known, str(v)) for known, v in each])
    return sums, first


@corpus("most_codes", [10, 10_000, counts._MOST_CODES])
def test_counts_of_some_tasks_each_sum_up_to_those_of_all(monkeypatch, most_codes):
    table = events(11, 40)
    together = totals(counts.counts_of(along.attempts_of(table, SCHEMA)))
    monkeypatch.setattr(counts, "_MOST_CODES", most_codes)
    parts = [along.attempts_of(each, SCHEMA) for each in along.whole_tasks(batches(table, 11))]
    assert len(parts) > 3
    assert totals(each for part in parts for each in counts.counts_of(part)) == together
    assert together[1]


def test_delays_are_rounded_down_to_two_digits():
    found = counts._rounded(np.array([0, 9, 10, 99, 100, 109, 12_345, 10**12 + 7]))
    assert found.tolist() == [0, 9, 10, 99, 100, 100, 12_000, 10**12]


def test_no_events_have_no_attempts_and_no_counts():
    assert list(along.whole_tasks([])) == []
    assert list(along.whole_tasks(EVENTS.empty_table().to_batches())) == []
    assert sum(map(len, counts.counts_of(SCHEMA.empty_table()))) == 0
