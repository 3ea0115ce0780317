"""Attempts are computed from tables of whole tasks; `tests/spark/test_reference.py` compares them with a reference."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest

from celery_rmq_delay.analytics.tables import along
from tests.support.corpus import corpus
from tests.support.spark.columns import EVENTS, SCHEMA

OUTCOMES = ("parked", "parked", "exhausted", "recovered", "discarded")


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(along, "_ROWS", 20)


def events(seed: int, tasks: int) -> pa.Table:
    """Events of tasks of up to 60 attempts; those of a task are together, by event id."""
    numbers = random.Random(seed)
    began = datetime(2026, 3, 2, tzinfo=timezone.utc)
    found: list[dict[str, object]] = []
    for task in range(tasks):
        for attempt in range(numbers.choice([1, 2, 3, 60])):
            for outcome in numbers.sample(OUTCOMES, k=numbers.choice([1, 1, 2])):
                row: dict[str, object] = dict.fromkeys(EVENTS.names)
                row.update(
                    task_id=f"task-{task}",
                    event_id=f"{len(found):06}",
                    outcome=outcome,
                    kind=outcome,
                    ended_at=began + timedelta(seconds=numbers.randrange(200_000)),
                    generation=numbers.choice([0, 0, 0, 1]),
                    attempt=attempt,
                    task="shop.pay",
                    queue="payments",
                    worker=numbers.choice(["a", "b"]),
                    tier=numbers.choice([1, None]),
                    delay_ms=numbers.choice([1_000, None]),
                    runtime_ms=numbers.choice([5, None]),
                    exception_type=numbers.choice(["Timeout", "KeyError", None]),
                    ladder_ms=[1_000],
                )
                found.append(row)
    return pa.Table.from_pylist(found, EVENTS)


def batches(table: pa.Table, seed: int) -> Iterator[pa.RecordBatch]:
    numbers, at = random.Random(seed), 0
    while at < len(table):
        size = numbers.choice([1, 7, 40])
        yield from table.slice(at, size).combine_chunks().to_batches()
        at += size


@corpus("seed", range(20))
def test_tasks_are_never_divided_and_no_row_is_lost(seed: int) -> None:
    table = events(seed, 30)
    parts = list(along.whole_tasks(batches(table, seed)))
    assert pa.concat_tables(parts).to_pylist() == table.to_pylist()
    of_parts = [set(each["task_id"].to_pylist()) for each in parts]
    assert len(parts) > 3
    assert sum(map(len, of_parts)) == len(set.union(*of_parts))


@corpus("seed", range(20))
def test_the_attempts_of_all_parts_are_those_of_the_whole_table(seed: int) -> None:
    table = events(seed, 30)
    parts = [along.attempts_of(each, SCHEMA) for each in along.whole_tasks(batches(table, seed))]
    assert pa.concat_tables(parts).to_pylist() == along.attempts_of(table, SCHEMA).to_pylist()


@pytest.mark.slow
def test_a_task_of_many_attempts_is_copied_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    starts = along.changes_of

    def counted(ids: pa.ChunkedArray) -> along.Flags:
        copies.append(len(ids))
        return starts(ids)

    monkeypatch.setattr(along, "changes_of", counted)
    table = pa.concat_tables([events(seed, 1).slice(0, 1) for seed in range(3_000)])
    (whole,) = along.whole_tasks(iter(table.to_batches()))
    assert len(whole) == 3_000
    assert sum(copies) < 3 * 3_000


def test_no_events_have_no_attempts() -> None:
    assert list(along.whole_tasks([])) == []
    assert list(along.whole_tasks(EVENTS.empty_table().to_batches())) == []
