"""Requeues from the database, on a real broker: every message once, or it is said that nobody knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_rmq_delay import headers as h
from celery_rmq_delay.contrib.django.models import Attempt, Operation, Payload, TaskState
from celery_rmq_delay.contrib.django.services.operations import run
from tests.support.brokers.kinds import EITHER_DATABASE
from tests.support.django import shop
from tests.support.django.desk import Desk, frozen, states

Kind, State = Operation.Kind, Operation.State


@pytest.fixture
def desk(rmq_vhost: str, database: Any) -> Iterator[Desk]:
    with shop.of(shop.make(rmq_vhost), broker_timeout=30):
        yield Desk(rmq_vhost)


@pytest.mark.brokers
def test_a_requeue_publishes_what_was_stored_as_the_next_generation(desk: Desk) -> None:
    (task,) = desk.exhausted(1, generation=1)
    operation = run(frozen())
    assert (operation.state, operation.message) == (State.DONE, "1 requeued")
    (message,) = desk.taken()
    assert message.body == b"\x80\x05bytes of id-0"
    assert message.headers == {"id": "id-0", "task": "payments.charge", "retries": 0, h.GENERATION: 2}
    assert message.properties["correlation_id"] == "id-0"
    assert message.properties["priority"] == 3
    assert message.properties["delivery_mode"] == 2
    task.refresh_from_db()
    assert (task.state, task.generation, task.attempt, task.operation) == (TaskState.REQUEUED, 2, 0, operation)
    assert not Payload.objects.exists()
    assert list(Attempt.objects.values_list("kind", "generation", "worker")) == [("requeued", 1, "alice")]


@EITHER_DATABASE
def test_a_thousand_tasks_are_requeued_in_order(desk: Desk) -> None:
    desk.exhausted(1000)
    operation = run(frozen())
    assert operation.message == "1000 requeued"
    assert [message.headers["id"] for message in desk.taken()] == [f"id-{number}" for number in range(1000)]


def test_without_its_queue_a_task_stays_exhausted(desk: Desk) -> None:
    desk.exhausted(2)
    desk.delete()
    operation = run(frozen())
    assert operation.message == "0 requeued, 2 failed (there is no queue payments)"
    assert states() == {TaskState.EXHAUSTED: 2}
    assert Payload.objects.count() == 2
    desk.declare()
    assert run(frozen()).message == "2 requeued"


@pytest.mark.brokers
def test_a_full_queue_refuses_and_the_rest_stays_exhausted(desk: Desk) -> None:
    desk.delete()
    desk.declare(**{"x-max-length": 3, "x-overflow": "reject-publish"})
    desk.exhausted(5)
    operation = run(frozen())
    assert operation.message == "3 requeued, 2 failed (queue payments refused it: it is full)"
    assert states() == {TaskState.EXHAUSTED: 2, TaskState.REQUEUED: 3}
    assert len(desk.taken()) == 3


def test_a_task_without_a_message_is_skipped(desk: Desk) -> None:
    desk.exhausted(2)
    Payload.objects.filter(record__task_id="id-1").delete()
    assert run(frozen()).message == "1 requeued, 1 skipped (its message is not in the database)"
    assert states() == {TaskState.EXHAUSTED: 1, TaskState.REQUEUED: 1}
