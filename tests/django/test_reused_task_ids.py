"""Task ids that are used again: each message of the exhausted queue that differs is kept, and can be requeued."""

import random
from datetime import timedelta

import pytest
from django.utils import timezone

from celery_rmq_delay import headers as h
from celery_rmq_delay.contrib.django.collecting.batches import Item
from celery_rmq_delay.contrib.django.collecting.database import Database
from celery_rmq_delay.contrib.django.models import (
    Attempt,
    CollectedMessage,
    Payload,
    TaskRecord,
    TaskState,
    UnreadableMessage,
)
from celery_rmq_delay.events.schema import DISCARDED, EXHAUSTED, PARKED, RECOVERED
from tests.support.django.batches import delivery, writer
from tests.support.django.databases import together
from tests.support.django.reported import at, exhausted, fact, life

pytestmark = pytest.mark.usefixtures("database")

ONE, TWO, THREE = b"[[1], {}, {}]", b"[[2], {}, {}]", b"[[3], {}, {}]"


@pytest.fixture
def tables():
    return Database()


def called(body, attempt=3, generation=0, later=0.0, **more):
    """Return the message of a task that was called with ``body``, exhausted ``later`` seconds after the usual time."""
    headers = {h.EXHAUSTED_AT: h.timestamp(at(generation, attempt, later)), **more}
    return exhausted("t", attempt, generation, body=body, **headers)


def kept():
    """Return state and body of all kept messages, in the order of their arrival."""
    rows = Payload.objects.order_by("record").values_list("record__state", "body")
    return [(state, bytes(body)) for state, body in rows]


def set_state(state, **more):
    TaskRecord.objects.update(state=state, changed_at=timezone.now(), **more)


def test_a_message_with_other_arguments_does_not_replace_the_one_that_is_kept(tables):
    for body in (ONE, TWO, THREE):
        tables.write([called(body)])
    assert kept() == [(TaskState.EXHAUSTED, body) for body in (ONE, TWO, THREE)]
    assert set(TaskRecord.objects.values_list("task_id", flat=True)) == {"t"}
    assert Attempt.objects.exclude(traceback="").count() == 3, "each row has its own error"


def test_messages_with_other_arguments_are_kept_when_one_batch_has_them_all(tables):
    tables.write([called(ONE, 3), called(TWO, 3), called(THREE, 1), *life("t", 3, EXHAUSTED)[:-1]])
    assert sorted(kept()) == [(TaskState.EXHAUSTED, body) for body in (ONE, TWO, THREE)]


def test_a_message_that_was_exhausted_twice_is_one_row(tables):
    tables.write([called(ONE)])
    tables.write([called(ONE, later=5)])
    tables.write([called(ONE, later=9, origin="gen42@another-web-server")])
    assert kept() == [(TaskState.EXHAUSTED, ONE)]


def test_a_failure_after_a_discard_is_shown_where_no_message_had_come_before(tables):
    tables.write([fact("t", EXHAUSTED, 3)])
    set_state(TaskState.DISCARDED)
    later = h.timestamp(timezone.now() + timedelta(minutes=1))
    tables.write([called(ONE, **{h.EXHAUSTED_AT: later})])
    assert kept() == [(TaskState.EXHAUSTED, ONE)]
    assert TaskRecord.objects.filter(state=TaskState.DISCARDED).count() == 1


@pytest.mark.parametrize("state", [TaskState.EXHAUSTED, TaskState.DISCARDED, TaskState.REQUEUED])
def test_a_message_that_is_delivered_again_changes_nothing(tables, state):
    messages = [called(ONE), called(TWO)]
    tables.write(messages)
    set_state(state)
    before = list(TaskRecord.objects.order_by("pk").values())
    again = called(ONE, **{"x-delivery-count": 1, "x-acquired-count": 2})  # as quorum queues mark a redelivery
    for batch in (messages, [again, *messages], [again]):
        Database().write(batch)
    assert list(TaskRecord.objects.order_by("pk").values()) == before
    assert kept() == [(state, ONE), (state, TWO)]


@pytest.mark.parametrize("next_one", [PARKED, RECOVERED, EXHAUSTED])
def test_events_of_another_call_hide_no_task_whose_message_is_kept(tables, next_one):
    tables.write([called(ONE, 1)])
    tables.write([fact("t", next_one, 3), fact("t", next_one, 2)])
    assert kept() == [(TaskState.EXHAUSTED, ONE)]


def test_a_message_behind_the_attempts_of_another_call_is_kept(tables):
    tables.write([fact("t", PARKED, 2)])
    tables.write([called(ONE, 0)])
    assert kept() == [(TaskState.EXHAUSTED, ONE)]
    assert sorted(TaskRecord.objects.values_list("state", flat=True)) == [TaskState.EXHAUSTED, TaskState.PARKED]


def test_a_message_older_than_the_recovery_of_another_call_is_kept(tables):
    tables.write([fact("t", RECOVERED, 3)])
    tables.write([called(ONE, 1)])
    assert kept() == [(TaskState.EXHAUSTED, ONE)]


def test_events_of_a_row_of_its_own_go_to_that_row(tables):
    tables.write([called(ONE), called(TWO)])
    first, second = TaskRecord.objects.order_by("pk")
    TaskRecord.objects.filter(pk=second.pk).update(state=TaskState.REQUEUED, generation=1, attempt=0)
    tables.write([fact("t", PARKED, 0, 1, life=second.life), fact("t", RECOVERED, 1, 1, life=second.life)])
    assert kept() == [(TaskState.EXHAUSTED, ONE)]
    second.refresh_from_db()
    assert (second.state, second.attempts.filter(generation=1).count()) == (TaskState.RECOVERED, 2)
    assert first.attempts.filter(generation=1).count() == 0


def test_a_message_of_a_row_of_its_own_comes_back_to_that_row(tables):
    tables.write([called(ONE), called(TWO)])
    second = TaskRecord.objects.latest("pk")
    TaskRecord.objects.filter(pk=second.pk).update(state=TaskState.REQUEUED, generation=1, attempt=0)
    tables.write([called(THREE, 2, 1, **{h.LIFE: second.life})])  # edited
    assert kept() == [(TaskState.EXHAUSTED, ONE), (TaskState.EXHAUSTED, THREE)]
    second.refresh_from_db()
    assert (second.generation, second.attempt) == (1, 2)


def test_a_message_whose_row_is_gone_gets_a_new_row(tables):
    tables.write([called(ONE, 2, 1, **{h.LIFE: "0123456789abcdef"})])
    assert kept() == [(TaskState.EXHAUSTED, ONE)]


# -- requeued messages are kept until an event arrives -----------------------------------------------------------------


@pytest.mark.parametrize("kind", [PARKED, RECOVERED, EXHAUSTED])
def test_a_requeued_message_is_kept_until_an_event_of_its_task_arrives(tables, kind):
    tables.write([called(ONE)])
    set_state(TaskState.REQUEUED, generation=1, attempt=0)
    tables.write([*life("t", 3, EXHAUSTED)[:-1], fact("t", PARKED, 4)])
    assert kept() == [(TaskState.REQUEUED, ONE)]
    tables.write([fact("t", kind, 0, 1)])
    assert (TaskRecord.objects.get().generation, kept()) == (1, [])


@pytest.mark.parametrize("reason", ["expired", "revoked"])
def test_a_requeued_message_is_kept_when_a_worker_does_not_run_it(tables, reason):
    tables.write([called(ONE)])
    set_state(TaskState.REQUEUED, generation=1, attempt=0)
    tables.write([fact("t", DISCARDED, 0, 1, reason=reason)])
    assert kept() == [(TaskState.DISCARDED, ONE)]


# -- several collectors, any order ------------------------------------------------------------------------------------


def test_every_call_is_kept_once_in_any_order_and_repetition(tables):
    facts = [called(body, attempt) for body in (ONE, TWO, THREE) for attempt in (0, 1, 3)]
    facts += life("t", 3, EXHAUSTED)[:-1]
    dice = random.Random(5)
    for _ in range(8):
        TaskRecord.objects.all().delete()
        shuffled = [*facts, *dice.choices(facts, k=6)]
        dice.shuffle(shuffled)
        while shuffled:
            size = dice.randint(1, len(shuffled))
            tables.write(shuffled[:size])
            del shuffled[:size]
        assert {body for _, body in kept()} == {ONE, TWO, THREE}
        assert {state for state, _ in kept()} == {TaskState.EXHAUSTED}


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_collectors_that_write_at_once_keep_every_message_once():
    def collector(bodies):
        return lambda: Database().write(
            [exhausted(f"t{number}", 3, body=body) for number in range(40) for body in bodies]
        )

    together(collector([ONE, TWO]), collector([TWO, THREE]), collector([THREE, ONE]))
    found = sorted((task_id, bytes(body)) for task_id, body in Payload.objects.values_list("record__task_id", "body"))
    assert found == sorted((f"t{number}", body) for number in range(40) for body in (ONE, TWO, THREE))


def test_a_message_that_fits_no_record_is_kept_as_unreadable(tables):
    written = writer(database=tables)
    tables.write([called(ONE), called(TWO)])
    CollectedMessage.objects.all().delete()
    TaskRecord.objects.update(state=TaskState.DISCARDED, changed_at=at(0, 0))
    item = Item("rmq_delay.exhausted", delivery(TWO), called(TWO))
    written._write([item])
    assert UnreadableMessage.objects.get().body == TWO
    assert kept() == [(TaskState.DISCARDED, ONE), (TaskState.DISCARDED, TWO)]
