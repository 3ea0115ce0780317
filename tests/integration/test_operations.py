"""Requeues from the database, on a real broker: every message once, or with an unknown outcome."""

import kombu
import pytest

from celery_rmq_delay import headers as h
from celery_rmq_delay.contrib.django.broker import queue_problem
from celery_rmq_delay.contrib.django.collecting.database import Database
from celery_rmq_delay.contrib.django.models import Attempt, Operation, Payload, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.services.operations.requests import run
from celery_rmq_delay.events.schema import RECOVERED
from tests.support.django import shop
from tests.support.django.desk import Desk, frozen, states
from tests.support.django.reported import exhausted, fact

Kind, State = Operation.Kind, Operation.State


@pytest.fixture
def desk(rmq_vhost, database):
    with shop.of(shop.make(rmq_vhost), broker_timeout=30):
        yield Desk(rmq_vhost)


@pytest.mark.brokers
def test_a_requeue_publishes_the_stored_message_as_the_next_generation(desk):
    (task,) = desk.exhausted(1, generation=1)
    operation = run(frozen())
    assert (operation.state, operation.message) == (State.DONE, "1 requeued")
    (message,) = desk.taken()
    assert message.body == b"\x80\x05bytes of id-0"
    named = {h.GENERATION: 2, h.LIFE: h.FIRST_LIFE}
    assert message.headers == {"id": "id-0", "task": "payments.charge", "retries": 0, **named}
    assert message.properties["correlation_id"] == "id-0"
    assert message.properties["priority"] == 3
    assert message.properties["delivery_mode"] == 2
    task.refresh_from_db()
    assert (task.state, task.generation, task.attempt, task.operation) == (TaskState.REQUEUED, 2, 0, operation)
    assert Payload.objects.exists(), "until an event of the task arrives"
    assert list(Attempt.objects.values_list("kind", "generation", "worker")) == [("requeued", 1, "alice")]


def test_a_thousand_tasks_are_requeued_in_order(desk):
    desk.exhausted(1000)
    operation = run(frozen())
    assert operation.message == "1,000 requeued"
    assert [message.headers["id"] for message in desk.taken()] == [f"id-{number}" for number in range(1000)]


def test_without_its_queue_a_task_stays_exhausted(desk):
    desk.exhausted(2)
    desk.delete()
    operation = run(frozen())
    assert operation.message == "0 requeued, 2 failed (there is no queue payments)"
    assert states() == {TaskState.EXHAUSTED: 2}
    assert Payload.objects.count() == 2
    desk.declare()
    assert run(frozen()).message == "2 requeued"


@pytest.mark.brokers
def test_a_full_queue_refuses_and_the_rest_stays_exhausted(desk):
    desk.delete()
    desk.declare(**{"x-max-length": 3, "x-overflow": "reject-publish"})
    desk.exhausted(5)
    operation = run(frozen())
    assert operation.message == "3 requeued, 2 failed (queue payments refused it: it is full)"
    assert states() == {TaskState.EXHAUSTED: 2, TaskState.REQUEUED: 3}
    assert len(desk.taken()) == 3


def test_a_task_without_a_message_is_skipped(desk):
    desk.exhausted(2)
    Payload.objects.filter(record__task_id="id-1").delete()
    assert run(frozen()).message == "1 requeued, 1 skipped (its message is not in the database)"
    assert states() == {TaskState.EXHAUSTED: 1, TaskState.REQUEUED: 1}


PAST, FUTURE = "2026-01-31T12:00:00+00:00", "2126-01-31T12:00:00Z"


@pytest.mark.brokers
def test_a_task_whose_expires_is_past_is_skipped_and_counted(desk):
    desk.exhausted(2, expires=PAST)
    desk.exhausted(1, expires=FUTURE)
    desk.exhausted(1)
    operation = run(frozen())
    assert operation.message == "2 requeued, 2 skipped (its expires is past: a worker would revoke it)"
    assert states() == {TaskState.EXHAUSTED: 2, TaskState.REQUEUED: 2}
    assert Payload.objects.count() == 4
    assert [message.headers["id"] for message in desk.taken()] == ["id-2", "id-3"]


@pytest.mark.brokers
def test_expired_tasks_can_be_requeued_without_expiry(desk):
    (task,) = desk.exhausted(1, expires=PAST)
    assert run(frozen(details={"without_expiry": True})).message == "1 requeued"
    (sent,) = desk.taken()
    assert (sent.headers["expires"], sent.body) == (None, b"\x80\x05bytes of id-0")
    assert Payload.objects.get().headers != b"", "the stored message stays until an event of a worker"
    Database().write([exhausted("id-0", 1, 1, body=b"other", expires=None)])
    task.refresh_from_db()
    assert (task.state, task.generation) == (TaskState.EXHAUSTED, 1)


@pytest.mark.brokers
def test_tasks_can_be_requeued_into_another_queue(desk):
    desk.exhausted(2)
    with kombu.Connection(desk.url) as connection:
        connection.channel().queue_declare("slow", durable=True, auto_delete=False)
    operation = run(frozen(details={"into_queue": "slow"}))
    assert (operation.message, operation.details["into_queue"]) == ("2 requeued", "slow")
    assert desk.taken() == []
    desk.queue = "slow"
    assert [message.headers["id"] for message in desk.taken()] == ["id-0", "id-1"]


@pytest.mark.brokers
@pytest.mark.parametrize(
    ("queue", "problem"),
    [
        ("gone", "there is no queue gone"),
        ("rmq_delay.exhausted", "rmq_delay.exhausted is not a queue of tasks"),
        ("rmq_delay.payments.record", "rmq_delay.payments.record is not a queue of tasks"),
        ("\N{SNOWMAN}" * 90, "no queue has a name of more than 255 bytes"),
    ],
)
def test_without_the_other_queue_no_task_is_claimed(desk, queue, problem):
    desk.exhausted(2)
    operation = run(frozen(details={"into_queue": queue}))
    assert (operation.state, operation.message) == (State.FAILED, f"0 requeued, 2 not sent ({problem})")
    assert states() == {TaskState.EXHAUSTED: 2}
    assert set(TaskRecord.objects.values_list("operation", flat=True)) == {None}
    assert queue_problem(queue) == problem
    assert queue_problem("payments") == ""


def test_a_requeued_task_without_events_can_be_restored_and_requeued(desk):
    (task,) = desk.exhausted(1)
    run(frozen())
    desk.taken()  # as if an operator had purged the queue
    assert run(frozen(kind=Kind.RESTORE)).message == "1 restored"
    assert run(frozen()).message == "1 requeued"
    (message,) = desk.taken()
    assert (message.body, message.headers[h.GENERATION]) == (b"\x80\x05bytes of id-0", 2)
    task.refresh_from_db()
    assert (task.state, task.generation) == (TaskState.REQUEUED, 2)


def test_events_of_a_restored_requeue_are_newer_than_its_row(desk):
    (task,) = desk.exhausted(1)
    run(frozen())
    run(frozen(kind=Kind.RESTORE))
    Database().write([fact("id-0", RECOVERED, 0, 1)])
    task.refresh_from_db()
    assert (task.state, Payload.objects.count()) == (TaskState.RECOVERED, 0)


def test_a_requeued_task_without_its_message_cannot_be_restored(desk):
    desk.exhausted(1)
    run(frozen())
    TaskRecord.objects.update(call_digest="")
    assert run(frozen(kind=Kind.RESTORE)).message == "0 restored, 1 skipped (already requeued by alice)"


def test_rows_of_one_task_id_are_requeued_each_with_its_life(desk):
    bodies = [b"[[1], {}, {}]", b"[[2], {}, {}]"]
    Database().write([exhausted("id-0", body=body) for body in bodies])
    assert run(frozen()).message == "2 requeued"
    lives = TaskRecord.objects.order_by("pk").values_list("life", flat=True)
    sent = desk.taken()
    assert [(message.body.encode(), message.headers[h.LIFE]) for message in sent] == list(
        zip(bodies, lives, strict=True)
    )
    assert Attempt.objects.filter(kind="requeued").count() == 2
    again = {h.GENERATION: 1, h.EXHAUSTED_AT: None}
    back = [
        exhausted("id-0", 1, body=body, **again, **{h.LIFE: life}) for body, life in zip(bodies, lives, strict=True)
    ]
    Database().write(back)
    assert states() == {TaskState.EXHAUSTED: 2}
    assert run(frozen()).message == "2 requeued"
