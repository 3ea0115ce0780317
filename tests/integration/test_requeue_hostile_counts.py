"""Messages whose counts are hostile: each is kept, and can be requeued again and again."""

import json

import pytest
from django.utils import timezone

from celery_rmq_delay import headers as h
from celery_rmq_delay.contrib.django.collecting.database import Database
from celery_rmq_delay.contrib.django.messages import headers_of, stored
from celery_rmq_delay.contrib.django.models import Operation, Payload, TaskRecord, TaskState, UnreadableMessage
from celery_rmq_delay.contrib.django.services.operations.requests import freeze, run
from celery_rmq_delay.events.schema import PARKED, RECOVERED
from tests.support.django import shop
from tests.support.django.batches import QUEUE, delivery, writer
from tests.support.django.desk import ALICE, Desk, frozen, states
from tests.support.django.reported import event, exhausted, fact

#: RabbitMQ refuses infinity and NaN.
HOSTILE = [2**31 - 1, 2**31 - 2, 2**31, 2**63 - 1, -1, -(2**63), h.MAX_GENERATION, h.MAX_GENERATION + 1]
HOSTILE += [True, None, 1.5, "7", "", b"\xff", [2**31], {"a": 1}]


@pytest.fixture
def desk(rmq_vhost, database):
    with shop.of(shop.make(rmq_vhost), broker_timeout=30):
        yield Desk(rmq_vhost)


def back(message):
    """Return the fact of a requeued message that was exhausted again."""
    now = h.timestamp(timezone.now())
    found = {**headers_of(stored(message)), h.QUEUE: "payments", h.ATTEMPTS: 1, h.EXHAUSTED_AT: now}
    return exhausted(found["id"], 0, body=message.body, **found)


@pytest.mark.parametrize("header", [h.GENERATION, h.ATTEMPTS, h.CRASHES, h.RETRIES, "retries", h.LIFE])
def test_a_task_with_a_hostile_count_can_be_requeued_again_and_again(desk, header):
    tables, count = Database(), len(HOSTILE)
    tables.write([exhausted(f"t{number}", **{header: value}) for number, value in enumerate(HOSTILE)])
    for _requeue in range(3):
        assert states() == {TaskState.EXHAUSTED: count}
        assert run(frozen()).message == f"{count} requeued"
        assert states() == {TaskState.REQUEUED: count}
        messages = desk.taken()
        assert len(messages) == Payload.objects.count() == count
        tables.write([back(message) for message in messages])
    assert states() == {TaskState.EXHAUSTED: count}
    assert Payload.objects.count() == count
    assert not UnreadableMessage.objects.exists()


def test_a_requeued_task_of_the_last_generation_changes_with_its_events(desk):
    Database().write([exhausted("t", 3, h.MAX_GENERATION)])
    assert run(frozen()).message == "1 requeued"
    (message,) = desk.taken()
    assert h.generation(message.headers) == h.MAX_GENERATION
    Database().write([fact("t", RECOVERED, 0, h.MAX_GENERATION)])
    assert states() == {TaskState.RECOVERED: 1}


@pytest.mark.parametrize("field", ["generation", "attempt", "crashes", "max_retries", "tier", "delay_ms"])
def test_a_hostile_count_in_an_event_hides_no_message(desk, field):
    values = [2**31 - 1, 2**31, 2**63 - 1, 2**63, -1, 1.5, "7", None, True]
    sent = [json.loads(event(f"t{number}", PARKED, 1).to_json()) for number in range(len(values))]
    events = [json.dumps({**each, field: value}).encode() for each, value in zip(sent, values, strict=True)]
    writer().write([(QUEUE, delivery(each, tag)) for tag, each in enumerate(events, 1)])
    Database().write([exhausted(f"t{number}", 3) for number in range(len(values))])
    wanted = TaskRecord.objects.filter(state=TaskState.EXHAUSTED)
    assert run(freeze(Operation.Kind.REQUEUE, wanted, actor=ALICE)).message == f"{len(values)} requeued"
    assert len(desk.taken()) == Payload.objects.count() == len(values)
