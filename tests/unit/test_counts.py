"""Counts of whole tasks: however the tasks are divided, their sums are the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from celery_rmq_delay.analytics.schema import ATTEMPTS, DAY
from celery_rmq_delay.analytics.storage.made import with_columns
from celery_rmq_delay.analytics.tables import counts
from tests.support.corpus import corpus

SCHEMA = to_arrow_schema(StructType([*ATTEMPTS, DAY]), timezone="UTC")
COUNTED = to_arrow_schema(counts.COUNTS, timezone="UTC")
BEGAN = datetime(2026, 3, 2, tzinfo=timezone.utc)
TASKS = 40

#: Columns that are summed, and those of a group's first failure.
SUMS = ("first_attempts", "failures", "parked", "recovered", "exhausted", "tasks_touched", "wasted_ms")
FIRST = ("first_seen", "exception_type", "exception_message")


def attempts() -> pa.Table:
    """Attempts of tasks whose ids have several names; those of a task are together."""
    numbers = random.Random(11)
    found = []
    for task in range(TASKS):
        for attempt in range(numbers.choice([1, 3, 30])):
            ended_at = BEGAN + timedelta(hours=numbers.randrange(60))
            found.append(
                {
                    "task_id": f"task-{task}",
                    "generation": numbers.choice([0, 0, 1]),
                    "attempt": attempt,
                    "task": numbers.choice(["shop.pay", "shop.mail"]),
                    "queue": "payments",
                    "outcome": numbers.choice(["parked", "parked", "exhausted", "recovered", "discarded"]),
                    "ended_at": ended_at,
                    "runtime_ms": numbers.choice([5, 10**12, None]),
                    "exception_type": numbers.choice(["Timeout", "Überlauf", None]),
                    "exception_message": numbers.choice(["a", "b", None]),
                    "fingerprint": numbers.choice(["f", "g", None]),
                    "previous_exception_type": numbers.choice(["Timeout", None]),
                    "tier": numbers.choice([1, 2, None]),
                    "delay_ms": numbers.choice([0, 99, 12_345, 10**12 + 7, None]),
                    "day": ended_at.date(),
                }
            )
    return pa.Table.from_pylist(found, SCHEMA)


def rows_of(tables: Iterable[pa.Table]) -> list[dict[str, Any]]:
    return [row for each in tables for row in with_columns(each, COUNTED).to_pylist()]


def totals(rows: Iterable[dict[str, Any]]) -> tuple[Counter[Any], dict[Any, Any]]:
    """Return the sums by key, and the first failure of each group."""
    sums: Counter[Any] = Counter()
    first: dict[Any, Any] = {}
    for row in rows:
        is_group = row["of"] == counts.FAILURES
        named = () if is_group else ("exception_type",)
        key = tuple(row[name] for name in ("of", "day", "minute", "task", "queue", "fingerprint", *named))
        key = (*key, row["tier"], row["delay_ms"])
        for name in SUMS:
            sums[key, name] += row[name] or 0
        if is_group:
            sample = [(row[name] is not None, row[name]) for name in FIRST]
            first[key] = min(first.get(key, sample), sample, key=lambda each: [(known, str(v)) for known, v in each])
    return sums, first


@corpus("most_codes", [10, 10_000, counts._MOST_CODES])
def test_counts_of_some_tasks_each_sum_up_to_those_of_all(monkeypatch: pytest.MonkeyPatch, most_codes: int) -> None:
    table = attempts()
    together = totals(rows_of(counts.counts_of(table)))
    monkeypatch.setattr(counts, "_MOST_CODES", most_codes)
    ids = table["task_id"].to_pylist()
    begins = [0, *sorted({ids.index(f"task-{task}") for task in range(3, TASKS, 7)}), len(table)]
    parts = [table.slice(at, end - at) for at, end in pairwise(begins)]
    assert totals(row for part in parts for row in rows_of(counts.counts_of(part))) == together
    assert together[1]


def test_delays_are_rounded_down_to_two_digits() -> None:
    found = counts._rounded(np.array([0, 9, 10, 99, 100, 109, 12_345, 10**12 + 7]))
    assert found.tolist() == [0, 9, 10, 99, 100, 100, 12_000, 10**12]


def test_no_attempts_have_no_counts() -> None:
    assert rows_of(counts.counts_of(SCHEMA.empty_table())) == []
