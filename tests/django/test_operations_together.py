"""Operations that several users create and run at the same time, on the same tasks, on PostgreSQL."""

import random
import threading
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.models import F
from django.utils import timezone

from celery_rmq_delay.contrib.django.models import Operation, OperationItem, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.services.actors import Actor
from celery_rmq_delay.contrib.django.services.operations.claims import lock
from celery_rmq_delay.contrib.django.services.operations.requests import freeze, run
from celery_rmq_delay.contrib.django.services.prune import prune
from tests.support.django.databases import together, waiting_for_locks
from tests.support.django.records import ago
from tests.support.waiting import BUSY, wait_for

pytestmark = pytest.mark.usefixtures("postgres", "shop")

Kind, Outcome = Operation.Kind, OperationItem.Outcome
TASKS, USERS, ROUNDS = 400, 4, 4


def add(numbers, days=0):
    """Add exhausted tasks that changed ``days`` ago."""
    changed_at = timezone.now() - timedelta(days=days)
    values: dict[str, Any] = {"name": "t", "queue": "q", "state": TaskState.EXHAUSTED, "changed_at": changed_at}
    TaskRecord.objects.bulk_create(TaskRecord(task_id=f"{number:04}", **values) for number in numbers)


def one_user(name):
    """Discard and restore overlapping selections, each in an order of its own."""
    chance = random.Random(name)
    for number in range(ROUNDS):
        kind = (Kind.DISCARD, Kind.RESTORE)[number % 2]
        some = TaskRecord.objects.filter(pk__gt=chance.randrange(TASKS // 2))
        run(freeze(kind, some.order_by(chance.choice(("task_id", "-task_id"))), actor=Actor(None, name)))


def test_users_who_freeze_and_run_operations_on_the_same_tasks_do_not_block_each_other():
    add(range(TASKS))
    together(*(partial(one_user, f"user {number}") for number in range(USERS)))
    done = Operation.objects.all()
    assert [each.state for each in done] == [Operation.State.DONE] * USERS * ROUNDS
    for each in done:
        found = [each.items.filter(outcome=outcome).count() for outcome in (Outcome.OK, Outcome.SKIPPED)]
        assert [each.ok, each.skipped] == found
        assert sum(found) == each.requested
    changes = [sum(each.ok for each in done if each.kind == kind) for kind in (Kind.DISCARD, Kind.RESTORE)]
    assert TaskRecord.objects.filter(state=TaskState.DISCARDED).count() == changes[0] - changes[1]


@contextmanager
def pruned(at):
    """Prune between two statements of the body, before number ``at``; yield the statements."""
    pruning = threading.Thread(target=prune_and_close, daemon=True)
    seen: list[str] = []

    def execute(statement, sql, *others):
        if len(seen) == at:
            pruning.start()
            pruning.join(BUSY)
            assert not pruning.is_alive()
        seen.append(sql)
        return statement(sql, *others)

    with connection.execute_wrapper(execute):
        yield seen


def prune_and_close(batch=5):
    try:
        prune(batch=batch)
    finally:
        connections.close_all()


def test_an_operation_on_tasks_that_are_pruned_in_the_meantime_has_the_others():
    sizes = set()
    for at in count():
        TaskRecord.objects.all().delete()
        add(range(0, 20, 2))
        add(range(1, 20, 2), days=400)
        with pruned(at) as statements:
            made = freeze(Kind.DISCARD, TaskRecord.objects.order_by("task_id"), actor=Actor(None, "bob"))
        if len(statements) <= at:
            break
        assert made.requested == made.items.filter(record__isnull=False).count() == TaskRecord.objects.count()
        sizes.add(made.requested)
    assert sizes == {10, 20}


def test_an_operation_on_tasks_whose_deletion_is_not_committed_yet_waits_and_has_the_others():
    add(range(0, 20, 2))
    add(range(1, 20, 2), days=400)
    deleted = threading.Event()

    def execute(statement, sql, *others):
        done = statement(sql, *others)
        if sql.startswith(f'DELETE FROM "{TaskRecord._meta.db_table}"'):
            deleted.set()
            wait_for(waiting_for_locks, "the operation's items refer to a task that is being deleted")
        return done

    def prune_slowly():
        with connection.execute_wrapper(execute):
            prune_and_close(batch=20)  # one batch: between two, the operation would take what the second deletes

    pruning = threading.Thread(target=prune_slowly, daemon=True)
    pruning.start()
    assert deleted.wait(BUSY)
    made = freeze(Kind.DISCARD, TaskRecord.objects.order_by("task_id"), actor=Actor(None, "bob"))
    pruning.join(BUSY)
    assert not pruning.is_alive()
    assert made.requested == made.items.count() == TaskRecord.objects.count() == 10


def old_operations(number, tasks):
    """Return operations that have expired, each with tasks that stay; some follow others."""
    chance = random.Random(number)
    done: dict[str, Any] = {"actor": "alice", "state": Operation.State.DONE, "finished_at": ago(days=366)}
    made = [Operation.objects.create(kind=Operation.Kind.DISCARD, **done) for _ in range(number)]
    for each in made[1:]:
        Operation.objects.filter(pk=each.pk).update(follows=chance.choice(made[: made.index(each)]))
    values: dict[str, Any] = {"name": "t", "queue": "q", "state": TaskState.UNKNOWN, "changed_at": ago()}
    owners = chance.sample(made * tasks, number * tasks)
    TaskRecord.objects.bulk_create(
        TaskRecord(task_id=f"{chance.random()}", operation=each, **values) for each in owners
    )
    return made


def pruned_meanwhile():
    """Prune in another thread, with a connection of its own; return the numbers of deleted rows."""
    done: dict[str, int] = {}

    def run_prune():
        done.update(prune())
        connections.close_all()

    thread = threading.Thread(target=run_prune)
    thread.start()
    thread.join(BUSY)
    assert not thread.is_alive()
    return done


def test_a_locked_task_is_left_for_the_next_prune():
    add(range(2), days=91)
    busy = TaskRecord.objects.order_by("pk")[0]
    with transaction.atomic():
        TaskRecord.objects.select_for_update().get(pk=busy.pk)
        assert pruned_meanwhile()["exhausted tasks"] == 1
    assert list(TaskRecord.objects.all()) == [busy]


def test_an_operation_whose_task_is_locked_is_left_for_the_next_prune():
    _, second, _ = old_operations(3, tasks=2)
    with transaction.atomic():
        TaskRecord.objects.select_for_update().filter(operation=second)[0]
        assert pruned_meanwhile()["operations"] == 2
    assert list(Operation.objects.all()) == [second]
    assert prune()["operations"] == 1
    assert TaskRecord.objects.filter(operation=None).count() == 6


def test_prunes_of_operations_and_a_collector_do_not_block_each_other():
    is_over = threading.Event()

    def collect():
        """Change all tasks in the order of the collector, over and over."""
        while not is_over.is_set():
            with transaction.atomic():
                lock(TaskRecord.objects.values_list("pk", flat=True))
                TaskRecord.objects.update(attempt=F("attempt") + 1)

    def prune_all():
        try:
            together(*[lambda: prune(batch=5)] * 4)
        finally:
            is_over.set()

    old_operations(200, tasks=2)
    together(collect, prune_all)
    prune()
    assert not Operation.objects.exists()
    assert TaskRecord.objects.filter(operation=None).count() == 400
