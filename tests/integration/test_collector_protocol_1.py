"""Messages of Celery's protocol 1, which have the task's name and id in the body: rows, previews and requeues."""

import json
import pickle

import amqp
import kombu
import pytest

from celery_rmq_delay import headers as h
from celery_rmq_delay.contrib.django.models import Payload, TaskRecord, TaskState, UnreadableMessage
from celery_rmq_delay.contrib.django.services.operations.requests import run
from celery_rmq_delay.contrib.django.services.payloads import preview
from celery_rmq_delay.events.schema import EXHAUSTED
from tests.support.django import shop
from tests.support.django.desk import Desk, frozen
from tests.support.django.reported import event
from tests.support.waiting import wait_for

OURS = {h.QUEUE: "payments", h.ATTEMPTS: 4, h.REASON: "retries_used"}
ARGS, KWARGS = [1234, {"password": "hunter2"}], {"currency": "EUR", "api_key": "abc"}


@pytest.fixture
def desk(rmq_vhost, database):
    with shop.of(shop.make(rmq_vhost), broker_timeout=30):
        yield Desk(rmq_vhost)


def encoded(text):
    return text.encode() if isinstance(text, str) else bytes(text)


def body(**more):
    made = {"task": "orders.tasks.charge", "id": "p1", "args": ARGS, "kwargs": KWARGS, "taskset": "g1", "retries": 0}
    return {**made, **more}


def old(content=None, content_type="application/json", **properties):
    """Return an exhausted message of protocol 1."""
    encoded = content if isinstance(content, bytes) else json.dumps(body() if content is None else content)
    values = {"content_type": content_type, "content_encoding": "utf-8", "delivery_mode": 2, **properties}
    return amqp.Message(encoded, application_headers=OURS, **values)


def as_celery_sends_it(rig):
    """Return the message that Celery publishes with ``task_protocol = 1``."""
    app = rig.delay.app
    made = app.amqp.as_task_v1("p1", "orders.tasks.charge", ARGS, KWARGS)
    assert "task" not in made.headers
    with kombu.Connection(rig.url) as connection:
        queue = connection.SimpleQueue("taken")
        queue.producer.publish(made.body, headers={**made.headers, **OURS}, serializer="json", **made.properties)
        found = wait_for(lambda: rig.channel.basic_get("taken", no_ack=True), "the message")
    return amqp.Message(found.body, **{**found.properties, "application_headers": found.headers})


@pytest.mark.parametrize("sent", ["by Celery", "with a correlation id", "without a correlation id"])
@pytest.mark.parametrize("order", ["event first", "message first", "no event"])
def test_a_message_of_protocol_1_gets_the_row_of_its_task_and_can_be_requeued(desk, rig, sent, order):
    message = old(correlation_id="p1") if sent == "with a correlation id" else old()
    if sent == "by Celery":
        message = as_celery_sends_it(rig)
    reported = event("p1", EXHAUSTED, 3)
    for each in {"event first": [reported, message], "message first": [message, reported]}.get(order, [message]):
        rig.send(each)
        rig.collect()
    row = TaskRecord.objects.get()
    assert (row.task_id, row.name, row.queue, row.attempt) == ("p1", "orders.tasks.charge", "payments", 3)
    assert row.state == TaskState.EXHAUSTED
    shown = preview(row)
    assert (json.loads(shown.args)[0], json.loads(shown.kwargs)["currency"]) == (1234, "EUR")
    for secret in ("hunter2", "abc"):
        assert secret not in f"{row.args_preview}{row.kwargs_preview}{shown.args}{shown.kwargs}"
    if order == "no event":
        assert row.args_preview.startswith("(1234, ")
    assert run(frozen()).message == "1 requeued"
    (again,) = desk.taken()
    assert encoded(again.body) == encoded(message.body)


HOSTILE = {
    "pickled": old(pickle.dumps(body()), "application/x-python-serialize", correlation_id="p1"),
    "not JSON": old(b"{", correlation_id="p1"),
    "no arguments": old({"task": "orders.tasks.charge", "id": "p1", "args": 5}, correlation_id="p1"),
    "a name that is a table": old(body(task={"a": 1}), correlation_id="p1"),
    "an id that is a number": old(body(id=7)),
    "an id with NUL": old(body(id="a\0b")),
    "a name of half a character": old(body(task="\ud800")),
    "nested": old(b'{"task": "a", "id": "b", "args": [' + b"[" * 900 + b"]" * 900 + b"]}"),
    "nested too deep": old(b'{"task": "a", "id": "b", "args": ' + b"[" * 90_000),
    "a long name": old(body(task="t" * 5_000, id="i" * 5_000)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_message_of_protocol_1_is_kept_and_can_be_requeued(desk, rig, name):
    rig.send(HOSTILE[name])
    rig.collect()
    assert TaskRecord.objects.get().state == TaskState.EXHAUSTED
    assert Payload.objects.count() == 1
    assert not UnreadableMessage.objects.exists()
    assert run(frozen()).message == "1 requeued"
    assert len(desk.taken()) == 1
