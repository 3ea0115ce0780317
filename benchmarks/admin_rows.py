"""Rows for the admin's benchmark: failures of a big shop, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from celery_rmq_delay.contrib.django.models import (
    CollectorStatus,
    FailureGroup,
    LookupValue,
    Operation,
    OperationItem,
    Tally,
    TaskRecord,
    search,
)

QUEUES = [f"queue{number}" for number in range(8)]
TASKS = [f"shop.tasks.task{number}" for number in range(60)]
ERRORS = [f"shop.errors.Error{number}" for number in range(40)]
WORKERS = [f"shop@node{number}" for number in range(12)]
GROUPS = 500
#: Occurs only a few times among all rows.
RARE_QUEUE, RARE_TASK, RARE_ERROR, RARE_WORKER = "rare", "shop.tasks.rare", "shop.errors.Rare", "shop@rare"
RARE_ROWS = 20
#: Words of the messages: in all rows, in every second one, and in the rare ones. Each group has two words of its own.
COMMON_WORD, FREQUENT_WORD, RARE_WORD = "declined", "bank", "chargeback"
#: The number of tasks that the operation has processed.
OPERATED = 30_000
LADDER = "[5000, 30000, 300000, 3600000]"

_COLUMNS = (
    "task_id", "root_id", "parent_id", "canvas_id", "name", "state", "changed_at", "queue", "exchange", "routing_key",
    "worker", "generation", "attempt", "max_retries", "crashes", "tier", "delay_ms", "delay_queue", "ladder_ms",
    "parked_at", "due_at", "first_failed_at", "exhausted_at", "exception_type", "exception_message", "reason",
    "failure_group_id", "args_preview", "kwargs_preview",
)  # fmt: skip


def fill(exhausted: int, parked: int, seed: int = 1) -> None:
    """Fill the empty tables."""
    now = timezone.now()
    chance = random.Random(seed)
    groups = _groups(now)
    with _without_indexes():
        _copy(TaskRecord._meta.db_table, _COLUMNS, _records(exhausted, parked, groups, now, chance))
    _tallies(now, chance)
    LookupValue.objects.bulk_create(
        LookupValue(kind=kind, value=value)
        for kind, values in (
            ("queue", [*QUEUES, RARE_QUEUE]),
            ("task", [*TASKS, RARE_TASK]),
            ("error", [*ERRORS, RARE_ERROR]),
            ("worker", [*WORKERS, RARE_WORKER]),
        )
        for value in values
    )
    _operation()
    CollectorStatus.objects.create(name="node:1", started_at=now, heartbeat_at=now, lag_ms=200)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE" if connection.vendor == "postgresql" else "ANALYZE")


@contextmanager
def _without_indexes() -> Iterator[None]:
    """Create the indexes of the tasks after the rows: that takes a tenth of the time."""
    with connection.schema_editor() as editor:
        for index in TaskRecord._meta.indexes:
            editor.remove_index(TaskRecord, index)
    search.drop(connection)
    yield
    with connection.schema_editor() as editor:
        for index in TaskRecord._meta.indexes:
            editor.add_index(TaskRecord, index)
    search.create(connection)


def _groups(now: datetime) -> list[int]:
    made = FailureGroup.objects.bulk_create(
        FailureGroup(
            fingerprint=f"{number:016x}",
            exception_type=ERRORS[number % len(ERRORS)],
            message="order <n> was declined by <text>",
            frame="shop/gateway.py:charge",
            first_seen=now - timedelta(days=30),
            last_seen=now - timedelta(seconds=number),
        )
        for number in range(GROUPS)
    )
    return [group.pk for group in made]


def _records(
    exhausted: int, parked: int, groups: list[int], now: datetime, chance: random.Random
) -> Iterator[tuple[Any, ...]]:
    # A few tasks, queues and errors make up most of the rows, as in practice.
    tasks, queues, errors, workers, kinds = (_skewed(values) for values in (TASKS, QUEUES, ERRORS, WORKERS, groups))
    why = f": {RARE_WORD}"
    for number in range(exhausted + parked):
        is_parked = number < parked
        rare = number % ((exhausted + parked) // RARE_ROWS) == 7
        who = FREQUENT_WORD if number % 2 else "issuer"
        at = now - timedelta(seconds=chance.random() * 60 * 86_400)
        task_id = f"{chance.getrandbits(128):032x}"
        queue = RARE_QUEUE if rare else chance.choice(queues)
        group = chance.choice(kinds)
        attempt = chance.randrange(4) if is_parked else 4
        yield (
            task_id, task_id, "", "", RARE_TASK if rare else chance.choice(tasks),
            "PARKED" if is_parked else "EXHAUSTED", at, queue, queue, queue,
            RARE_WORKER if rare else chance.choice(workers), int(chance.random() < 0.02), attempt, 4, 0,
            attempt + 1 if is_parked else None, 30_000, "",
            LADDER, at, now + timedelta(seconds=chance.random() * 7_200 - 300) if is_parked else None,
            at - timedelta(hours=1), None if is_parked else at, RARE_ERROR if rare else chance.choice(errors),
            f"order {number} was {COMMON_WORD} by 'the {who}': gateway{group} step{group % 97}{why if rare else ''}",
            "" if is_parked else "retries_used", group, f"[{number}]", "{}",
        )  # fmt: skip


def _operation() -> None:
    """Create an operation on exhausted tasks, of which every third one failed."""
    made = Operation.objects.create(kind="requeue", state="DONE", actor="bob", requested=OPERATED)
    tasks = TaskRecord.objects.filter(state="EXHAUSTED").order_by("-pk").values_list("pk", flat=True)[:OPERATED]
    OperationItem.objects.bulk_create(
        (
            OperationItem(operation=made, record_id=pk, position=place, outcome="OK" if place % 3 else "FAILED")
            for place, pk in enumerate(tasks)
        ),
        batch_size=5_000,
    )


def _skewed(values: list[Any]) -> list[Any]:
    return [value for place, value in enumerate(values) for _ in range(max(1, len(values) // (place + 1)))]


def _tallies(now: datetime, chance: random.Random) -> None:
    first = now.replace(minute=0, second=0, microsecond=0)
    columns = ("slot", "queue", "name", "fingerprint", "parked", "recovered", "exhausted", "succeeded")
    rows = (
        (
            first - timedelta(minutes=10 * slot), QUEUES[group % len(QUEUES)], TASKS[group % len(TASKS)],
            f"{group:016x}", chance.randrange(50), chance.randrange(40), chance.randrange(3), 0,
        )
        for slot in range(7 * 144)
        for group in range(0, GROUPS, 5)
    )  # fmt: skip
    _copy(Tally._meta.db_table, columns, rows)


def _copy(table: str, columns: tuple[str, ...], rows: Iterator[tuple[Any, ...]]) -> None:
    if connection.vendor == "sqlite":
        values = ", ".join("?" * len(columns))
        with transaction.atomic():
            # Without Django's cursor, which would convert the placeholders for each row.
            connection.connection.executemany(
                f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})",
                (
                    [
                        value.replace(tzinfo=None).isoformat(" ") if isinstance(value, datetime) else value
                        for value in row
                    ]
                    for row in rows
                ),
            )
        return
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
