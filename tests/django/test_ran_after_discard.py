"""Discarded tasks that ran all the same, as after a crash of the broker: they are marked, shown and signalled."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from celery_rmq_delay.contrib.django.collecting.database import Database
from celery_rmq_delay.contrib.django.models import Operation, Payload, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.signals import task_ran_after_discard
from celery_rmq_delay.events.schema import DISCARDED, EXHAUSTED, PARKED, RECOVERED
from tests.support.brokers.kinds import POSTGRES_TABLES
from tests.support.django.admin_pages import BASE
from tests.support.django.reported import exhausted, fact

pytestmark = [pytest.mark.usefixtures("tables", "shop"), POSTGRES_TABLES]

CALL = exhausted("t", 2)


@pytest.fixture
def received():
    """Records of the received signals."""
    found: list[TaskRecord] = []

    def receive(record, **_):
        found.append(record)

    task_ran_after_discard.connect(receive)
    yield found
    task_ran_after_discard.disconnect(receive)


def discarded(*, is_kept=True, attempt=1, by_user=True):
    """Return a task that was parked after ``attempt``, then discarded."""
    Database().write([fact("t", PARKED, attempt)])
    row = TaskRecord.objects.get()
    row.state, row.changed_at = TaskState.DISCARDED, timezone.now()
    row.operation = Operation.objects.create(kind="discard", actor="alice") if by_user else None
    if is_kept:
        assert CALL.message is not None
        Payload.objects.create(record=row, stored_at=row.changed_at, **vars(CALL.message))
        row.call_digest = CALL.call
    row.save()
    return row


@pytest.mark.parametrize("is_kept", [True, False], ids=["message kept", "no message"])
@pytest.mark.parametrize("kind", [PARKED, RECOVERED, EXHAUSTED, "message"])
def test_a_later_attempt_marks_the_row_and_is_signalled_once(client, received, kind, is_kept):
    row = discarded(is_kept=is_kept)
    ran = CALL if kind == "message" else fact("t", kind, 2)
    for _delivery in range(2):
        Database().write([fact("t", PARKED, 1), ran])
    row.refresh_from_db()
    assert row.ran_after_discard_at is not None
    assert [each.pk for each in received] == [row.pk]
    assert received[0].ran_after_discard_at == row.ran_after_discard_at
    kept_state = kind == "message" or not is_kept
    assert (row.state == TaskState.DISCARDED) is not kept_state
    assert Payload.objects.filter(record=row).exists() is (is_kept or kind == "message")
    page = client.get(f"{BASE}/taskrecord/{row.pk}/change/").content.decode()
    assert page.lower().count("ran after it was discarded") == 2
    assert "ran after it was discarded" in client.get(f"{BASE}/taskrecord/").content.decode()


NO_RUNS = {
    "its own event, which arrives late": fact("t", PARKED, 1),
    "an earlier attempt": fact("t", PARKED, 0),
    "revoked on arrival": fact("t", DISCARDED, 2, reason="revoked"),
    "another use of the id": fact("t", PARKED, 2, first_failed_at=timezone.now() + timedelta(days=9)),
    "another row of the id": fact("t", PARKED, 2, life="0123abcd"),
    "another task": fact("u", PARKED, 2),
}


@pytest.mark.parametrize("name", NO_RUNS)
def test_events_that_show_no_run_of_the_task_mark_nothing(received, name):
    discarded()
    Database().write([NO_RUNS[name]])
    assert not TaskRecord.objects.filter(ran_after_discard_at__isnull=False).exists()
    assert received == []


def test_a_row_that_no_user_has_discarded_is_not_marked(received):
    discarded(by_user=False)
    Database().write([fact("t", RECOVERED, 2)])
    assert received == []


def test_a_run_before_a_second_discard_does_not_hide_one_after_it(received):
    row = discarded()
    Database().write([fact("t", PARKED, 2)])
    TaskRecord.objects.filter(pk=row.pk).update(changed_at=timezone.now())
    Database().write([fact("t", PARKED, 3), fact("t", PARKED, 4)])
    assert [each.pk for each in received] == [row.pk, row.pk]


def discarded_when_exhausted(state=TaskState.DISCARDED):
    """Return a task that was exhausted in attempt 2, and that a user has discarded since."""
    Database().write([fact("t", PARKED, 1), fact("t", EXHAUSTED, 2), CALL])
    row = TaskRecord.objects.get()
    row.state, row.changed_at = state, timezone.now()
    row.operation = Operation.objects.create(kind="discard", actor="alice")
    row.save()
    return row


def ran(**given):
    """Return the event of an attempt of the next generation, which has ended an hour after the discard."""
    values = {"kind": RECOVERED, "generation": 1, "occurred_at": timezone.now() + timedelta(hours=1), **given}
    return fact("t", **values)


@pytest.mark.parametrize("kind", [PARKED, RECOVERED, EXHAUSTED])
def test_a_run_of_a_message_that_an_earlier_requeue_has_sent_marks_an_exhausted_row(received, kind):
    row, event = discarded_when_exhausted(), ran(kind=kind)
    for _delivery in range(2):
        Database().write([event])
    row.refresh_from_db()
    assert row.ran_after_discard_at == event.event.occurred_at
    assert row.state != TaskState.DISCARDED
    assert [each.pk for each in received] == [row.pk]


def test_a_message_of_an_earlier_requeue_marks_a_row_that_has_been_requeued_again(received):
    row, event = discarded_when_exhausted(), ran()
    TaskRecord.objects.update(generation=2)
    Database().write([event])
    row.refresh_from_db()
    assert (row.state, row.generation) == (TaskState.DISCARDED, 2)
    assert row.ran_after_discard_at == event.event.occurred_at
    assert [each.pk for each in received] == [row.pk]


OTHERS: dict[str, dict[str, Any]] = {
    "a new task with the id": {"generation": 0, "life": None, "attempt": 5},
    "a new task with the id, at the same attempt": {"generation": 0, "life": None, "attempt": 2},
    "a requeue of any message with the id": {"life": None},
    "a run that ended before the discard": {"occurred_at": timezone.now() - timedelta(hours=1)},
    "a row of its own": {"life": "0123abcd"},
    "a task that was revoked on arrival": {"kind": DISCARDED, "reason": "revoked"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_events_that_may_be_of_another_task_do_not_mark_an_exhausted_row(received, name):
    discarded_when_exhausted()
    Database().write([ran(**OTHERS[name])])
    assert not TaskRecord.objects.filter(ran_after_discard_at__isnull=False).exists()
    assert received == []


def test_a_requeued_row_that_runs_is_not_marked(received):
    discarded_when_exhausted(TaskState.UNKNOWN)
    Database().write([ran()])
    assert received == []
