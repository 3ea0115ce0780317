"""Operations that several users create and run at the same time, on the same tasks, on PostgreSQL."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from celery_rmq_delay.contrib.django.models import Operation, OperationItem, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.services.actors import Actor
from celery_rmq_delay.contrib.django.services.operations.requests import freeze, run
from celery_rmq_delay.contrib.django.services.prune import prune
from tests.support.waiting import BUSY

pytestmark = pytest.mark.usefixtures("postgres", "shop")

Kind, Outcome = Operation.Kind, OperationItem.Outcome
TASKS, USERS, ROUNDS = 400, 4, 4


def add(numbers: Iterable[int], days: int = 0) -> None:
    """Add exhausted tasks that changed ``days`` ago."""
    changed_at = timezone.now() - timedelta(days=days)
    values: dict[str, Any] = {"name": "t", "queue": "q", "state": TaskState.EXHAUSTED, "changed_at": changed_at}
    TaskRecord.objects.bulk_create(TaskRecord(task_id=f"{number:04}", **values) for number in numbers)


def one_user(name: str, failures: list[BaseException]) -> None:
    """Discard and restore overlapping selections, each in an order of its own."""
    chance = random.Random(name)
    try:
        for number in range(ROUNDS):
            kind = (Kind.DISCARD, Kind.RESTORE)[number % 2]
            some = TaskRecord.objects.filter(pk__gt=chance.randrange(TASKS // 2))
            run(freeze(kind, some.order_by(chance.choice(("task_id", "-task_id"))), actor=Actor(None, name)))
    except BaseException as error:  # noqa: BLE001 - the test's thread raises it
        failures.append(error)
    finally:
        connections.close_all()


def test_users_who_freeze_and_run_operations_on_the_same_tasks_do_not_block_each_other() -> None:
    add(range(TASKS))
    failures: list[BaseException] = []
    users = [threading.Thread(target=one_user, args=(f"user {number}", failures)) for number in range(USERS)]
    for user in users:
        user.start()
    for user in users:
        user.join(BUSY)
    assert not any(user.is_alive() for user in users)
    assert failures == []
    done = Operation.objects.all()
    assert [each.state for each in done] == [Operation.State.DONE] * USERS * ROUNDS
    for each in done:
        found = [each.items.filter(outcome=outcome).count() for outcome in (Outcome.OK, Outcome.SKIPPED)]
        assert [each.ok, each.skipped] == found
        assert sum(found) == each.requested
    changes = [sum(each.ok for each in done if each.kind == kind) for kind in (Kind.DISCARD, Kind.RESTORE)]
    assert TaskRecord.objects.filter(state=TaskState.DISCARDED).count() == changes[0] - changes[1]


def test_an_operation_on_tasks_that_are_pruned_in_the_meantime_has_the_others() -> None:
    add(range(0, 4_000, 10))
    add((number for number in range(4_000) if number % 10), days=400)
    pruning = threading.Thread(target=lambda: (prune(batch=5), connections.close_all()), daemon=True)
    pruning.start()
    made = [freeze(Kind.DISCARD, TaskRecord.objects.order_by("task_id"), actor=Actor(None, "bob")) for _ in range(3)]
    pruning.join(BUSY)
    assert not pruning.is_alive()
    day_ago = timezone.now() - timedelta(days=1)
    for each in made:
        assert each.requested >= each.items.filter(record__changed_at__gt=day_ago).count() == 400
