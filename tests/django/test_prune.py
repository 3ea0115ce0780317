"""Retention: old rows are pruned with their dependent rows, and rows that are still needed stay."""

from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.core.management import CommandError
from django.db import connection
from django.db.models import Sum
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from celery_rmq_delay.contrib.django.models import (
    Attempt,
    FailureGroup,
    LookupValue,
    Operation,
    OperationItem,
    Payload,
    Tally,
    TaskRecord,
    TaskState,
    UnreadableMessage,
)
from celery_rmq_delay.contrib.django.services.actors import Actor
from celery_rmq_delay.contrib.django.services.operations.requests import freeze
from celery_rmq_delay.contrib.django.services.prune import FOLDED, prune
from tests.support.brokers.kinds import BOTH_DATABASES
from tests.support.django.commands import manage
from tests.support.django.records import ago, attempt, group, record

pytestmark = [pytest.mark.usefixtures("database"), BOTH_DATABASES]

KEPT = {"KEEP_RECOVERED_DAYS": 7, "KEEP_DISCARDED_DAYS": 30, "KEEP_EXHAUSTED_DAYS": 90, "KEEP_HISTORY_DAYS": 365}
WITHOUT_LIMIT = dict.fromkeys(KEPT)


@pytest.fixture(autouse=True)
def retention():
    with override_settings(RMQ_DELAY=KEPT):
        yield


def left():
    return set(TaskRecord.objects.values_list("state", flat=True))


@pytest.mark.parametrize(
    ("state", "days"),
    [
        (TaskState.RECOVERED, 7),
        (TaskState.REQUEUED, 7),
        (TaskState.DISCARDED, 30),
        (TaskState.EXHAUSTED, 90),
        (TaskState.PARKED, 365),
        (TaskState.RUNNING, 365),
    ],
)
def test_a_task_is_pruned_when_its_state_is_older_than_the_retention(state, days):
    record(state, changed_at=ago(days=days, hours=1), due_at=None)
    young = record(state, changed_at=ago(days=days, hours=-1))
    prune()
    assert list(TaskRecord.objects.all()) == [young]


@pytest.mark.parametrize("kept", [KEPT, WITHOUT_LIMIT])
def test_a_draft_is_pruned_after_a_day_whatever_is_kept(kept):
    task = record(changed_at=ago(days=1))
    old, young = (freeze("discard", TaskRecord.objects.all(), actor=Actor(None, "a"), draft=True) for _ in range(2))
    asked = freeze("discard", TaskRecord.objects.all(), actor=Actor(None, "a"))
    Operation.with_drafts.filter(pk__in=[old.pk, asked.pk]).update(created_at=ago(days=1, hours=1))
    Operation.with_drafts.filter(pk=young.pk).update(follows=old)
    with override_settings(RMQ_DELAY=kept):
        prune()
    assert set(Operation.with_drafts.all()) == {young, asked}
    assert list(TaskRecord.objects.all()) == [task]


def test_tasks_that_need_a_person_and_parked_ones_that_are_due_in_the_future_stay():
    for state in (TaskState.REQUEUING, TaskState.UNKNOWN, TaskState.PARKED):
        record(state, changed_at=ago(days=4000), due_at=ago(days=-1))
    prune()
    assert left() == {TaskState.REQUEUING, TaskState.UNKNOWN, TaskState.PARKED}


@override_settings(RMQ_DELAY=WITHOUT_LIMIT)
def test_none_keeps_everything_without_a_limit():
    for state in TaskState:
        attempt(record(state, changed_at=ago(days=4000)))
    Tally.objects.create(slot=ago(days=4000), queue="q", name="t", parked=1)
    assert prune() == {}
    assert left() == set(TaskState)
    assert Attempt.objects.count() == len(TaskState)


def test_rows_that_belong_to_a_task_are_pruned_with_it():
    old, kept = record(changed_at=ago(days=91)), record(changed_at=ago(days=1), failure_group=group())
    operation = Operation.objects.create(kind=Operation.Kind.DISCARD, actor="alice", state=Operation.State.DONE)
    for each in (old, kept):
        attempt(each)
        Payload.objects.create(record=each, body=b"x", headers=b"", stored_at=ago())
        OperationItem.objects.create(operation=operation, record=each, outcome=OperationItem.Outcome.OK)
    prune()
    assert list(Attempt.objects.values_list("record", flat=True)) == [kept.pk]
    assert list(Payload.objects.values_list("record", flat=True)) == [kept.pk]
    assert list(OperationItem.objects.values_list("record", flat=True)) == [kept.pk]
    assert Operation.objects.get() == operation


def test_a_task_that_an_operation_has_not_come_to_yet_stays():
    waiting, done = record(changed_at=ago(days=91)), record(changed_at=ago(days=91))
    operation = Operation.objects.create(kind=Operation.Kind.REQUEUE, actor="alice")
    OperationItem.objects.create(operation=operation, record=waiting)
    OperationItem.objects.create(operation=operation, record=done, outcome=OperationItem.Outcome.SKIPPED)
    prune()
    assert list(TaskRecord.objects.all()) == [waiting]


def test_old_attempts_and_operations_are_pruned_without_their_tasks():
    still = record(TaskState.UNKNOWN, changed_at=ago(days=1))
    attempt(still, occurred_at=ago(days=366))
    new = attempt(still, occurred_at=ago(days=1))
    done = Operation.objects.create(
        kind=Operation.Kind.EDIT, actor="alice", state=Operation.State.DONE, finished_at=ago(days=366)
    )
    going = Operation.objects.create(kind=Operation.Kind.EDIT, actor="alice", state=Operation.State.RUNNING)
    Operation.objects.filter(pk=going.pk).update(created_at=ago(days=1000))
    OperationItem.objects.create(operation=done, record=still, outcome=OperationItem.Outcome.UNKNOWN)
    TaskRecord.objects.filter(pk=still.pk).update(operation=done)
    prune()
    assert list(Attempt.objects.all()) == [new]
    assert list(Operation.objects.all()) == [going]
    assert not OperationItem.objects.exists()
    still.refresh_from_db()
    assert still.operation is None


def test_empty_groups_without_a_note_are_pruned():
    old: dict[str, Any] = {"last_seen": ago(days=366)}
    group(**old)
    kept = [group(**old, note="known"), group(**old, muted=True), group(**old), group()]
    record(TaskState.UNKNOWN, failure_group=kept[2])
    prune()
    assert list(FailureGroup.objects.order_by("pk")) == kept


def test_workers_without_tasks_are_no_longer_choices_of_the_filter():
    record(TaskState.EXHAUSTED, worker="celery@busy")
    for kind, value in (("worker", "celery@busy"), ("worker", "celery@gone"), ("queue", "celery@gone")):
        LookupValue.objects.create(kind=kind, value=value)
    assert prune()["workers without tasks"] == 1
    assert set(LookupValue.objects.values_list("kind", "value")) == {
        ("worker", "celery@busy"),
        ("queue", "celery@gone"),
    }


def test_old_unreadable_messages_are_pruned():
    for digest, received in (("old", ago(days=91)), ("new", ago(days=1))):
        UnreadableMessage.objects.create(digest=digest, queue="q", body=b"", headers=b"", received_at=received)
    prune()
    assert [each.digest for each in UnreadableMessage.objects.all()] == ["new"]


def totals():
    sums = [Sum(name) for name in ("parked", "recovered", "exhausted", "succeeded")]
    return list(Tally.objects.values_list("queue", "name").annotate(*sums).order_by("queue", "name"))


def test_old_entries_of_these_pages_in_the_log_of_django_are_pruned():
    user = User.objects.create_user("alice")
    ours, other = (ContentType.objects.get_for_model(model) for model in (Operation, User))
    entries = {}
    for kind in (ours, other):
        for days in (366, 364):
            entry = LogEntry(user=user, content_type=kind, object_id="1", object_repr="x", action_flag=CHANGE)
            entries[kind, days] = LogEntry.objects.bulk_create([entry])[0]
            LogEntry.objects.filter(pk=entries[kind, days].pk).update(action_time=ago(days=days))
    assert prune(dry_run=True)["entries in Django's log"] == 1
    assert prune(batch=1)["entries in Django's log"] == 1
    assert set(LogEntry.objects.all()) == {entries[ours, 364], entries[other, 366], entries[other, 364]}


def test_old_tallies_are_added_up_so_that_totals_never_fall():
    for days in (400, 399, 380, 2):
        for name in ("charge", "refund"):
            for fingerprint in ("", "f1"):
                counts = {"parked": days, "recovered": 2, "exhausted": 3}
                Tally.objects.create(slot=ago(days=days), queue="q", name=name, fingerprint=fingerprint, **counts)
    before = totals()
    assert prune(batch=5)["tallies"] == 12
    assert totals() == before
    assert Tally.objects.filter(slot=FOLDED).count() == 2
    Tally.objects.create(slot=ago(days=390), queue="q", name="charge", parked=1)  # of an event that came late
    before = totals()
    assert prune()["tallies"] == 1
    assert totals() == before
    assert Tally.objects.count() == 6


def test_each_transaction_is_short():
    now = ago(days=91)
    TaskRecord.objects.bulk_create(
        TaskRecord(task_id=f"t{n}", name="a", state="EXHAUSTED", changed_at=now, queue="q") for n in range(25)
    )
    with CaptureQueriesContext(connection) as queries:
        assert prune(batch=10)["exhausted tasks"] == 25
    ended = [query["sql"] for query in queries if query["sql"].startswith("COMMIT")]
    assert len(ended) >= 4


def test_a_dry_run_counts_and_deletes_nothing():
    attempt(record(TaskState.RECOVERED, changed_at=ago(days=8)), occurred_at=ago(days=366))
    Tally.objects.create(slot=ago(days=366), queue="q", name="t", parked=1)
    counted = prune(dry_run=True)
    assert (counted["recovered and requeued tasks"], counted["attempts"], counted["tallies"]) == (1, 1, 1)
    assert (TaskRecord.objects.count(), Attempt.objects.count(), Tally.objects.count()) == (1, 1, 1)


def test_the_command_prints_what_it_deleted():
    record(TaskState.DISCARDED, changed_at=ago(days=31))
    output = manage("prune", dry_run=True)
    assert "         1  discarded tasks\n" in output
    assert output.endswith("Nothing was deleted.\n")
    assert TaskRecord.objects.exists()
    assert manage("prune").endswith("Deleted.\n")
    assert not TaskRecord.objects.exists()
    with pytest.raises(CommandError, match="--batch"):
        manage("prune", batch=0)


def test_a_requeued_task_without_events_is_pruned_when_an_exhausted_one_would_be():
    record(TaskState.REQUEUED, changed_at=ago(days=8))
    without_events = record(TaskState.REQUEUED, changed_at=ago(days=8), call_digest="abc")
    record(TaskState.REQUEUED, changed_at=ago(days=91), call_digest="abc")
    prune()
    assert list(TaskRecord.objects.all()) == [without_events]
