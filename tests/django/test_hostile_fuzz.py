"""Any message of the two queues becomes a row or is kept as unreadable, and can be shown and requeued."""

import json
import math

import amqp
import pytest
from amqp import serialization
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from celery_rmq_delay import headers as h
from celery_rmq_delay.contrib.django.collecting import rows, statements
from celery_rmq_delay.contrib.django.collecting.facts import Fact, Reader, Unreadable
from celery_rmq_delay.contrib.django.messages import for_requeue, stored
from celery_rmq_delay.contrib.django.models import Payload, TaskRecord, TaskState, UnreadableMessage
from celery_rmq_delay.contrib.django.services.actors import Actor
from celery_rmq_delay.contrib.django.services.operations.edit import editable
from celery_rmq_delay.contrib.django.services.payloads import preview, reveal
from celery_rmq_delay.events.schema import KINDS, Event
from celery_rmq_delay.exceptions import EditError
from celery_rmq_delay.redaction import DEFAULT
from tests.support import hostile
from tests.support.django.batches import delivery
from tests.support.django.records import record
from tests.support.django.reported import event
from tests.support.examples import examples

READER = Reader("rmq_delay.events", DEFAULT)
EVENT = json.loads(event("e").to_json())
NOW = timezone.now()


bodies = st.one_of(
    st.binary(max_size=40),
    hostile.json_values.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")),
    st.tuples(
        st.lists(hostile.json_values, max_size=2), st.dictionaries(hostile.texts, hostile.json_values, max_size=2)
    ).map(lambda parts: json.dumps([*parts, {}]).encode("utf-8", "surrogatepass")),
    st.sampled_from([b"[" * 50_000, b'{"a":' * 20_000, b"9" * 20_000, b"\x1f\x8b", b"x\x9c", b"\x80\x04K\x01."]),
)


def storable(value):
    """Fail for values that PostgreSQL refuses: NUL and lone surrogates in texts, numbers beyond their columns."""
    if isinstance(value, str):
        assert "\0" not in value
        value.encode()
    elif isinstance(value, int):
        assert -(2**63) <= value < 2**63
    else:
        assert not isinstance(value, float) or math.isfinite(value)


@given(bodies, hostile.properties, st.binary(max_size=20))
def test_every_exhausted_message_becomes_a_row_or_is_unreadable(body, properties, key):
    came = delivery(body, properties=properties, key=key)
    found = READER.read("rmq_delay.exhausted", came)
    if isinstance(found, Unreadable):
        assert (found.body, found.headers) == (body, properties)
        storable(found.error)
        return
    assert isinstance(found, Fact)
    assert found.message is not None
    for statement, row in (
        (statements.RECORDS, rows.record(found, {}, NOW)),
        (statements.ATTEMPTS, rows.attempt(found, 1)),
        (statements.PAYLOADS, rows.payload(found.message, 0, 1, NOW)),
    ):
        assert row.keys() == set(statement.columns)
        for value in row.values():
            storable(value)
    assert found.message.body == body
    json.loads(rows.payload(found.message, 0, 1, NOW)["properties"])
    again = for_requeue(found.message, **{h.GENERATION: 1})
    assert again._serialize_properties()


kinds = st.sampled_from(KINDS)
events = st.dictionaries(
    st.sampled_from([*EVENT, "ok_count", "reason", "crashes"]), hostile.json_values | hostile.integers, max_size=4
)


@given(bodies | events.map(lambda more: json.dumps({**EVENT, **more}).encode("utf-8", "surrogatepass")))
def test_every_event_is_read_or_unreadable(body):
    found = READER.read("rmq_delay.events", delivery(body))
    if isinstance(found, Unreadable):
        assert found.body == body
        storable(found.error)
    elif isinstance(found, Fact):
        for value in (*rows.record(found, {}, NOW).values(), *rows.attempt(found, 1).values()):
            storable(value)
        rows.tallies([found.event])
        rows.groups([found.event])
        assert Event.from_json(found.event.to_json()) == found.event


@pytest.mark.usefixtures("tables", "shop")
@examples(0.5, suppress_health_check=[HealthCheck.function_scoped_fixture])  # all in one database
@given(bodies, hostile.headers, st.sampled_from(["application/json", "", "x/y"]))
def test_every_kept_message_can_be_shown_and_requeued(body, headers, content_type):
    task = TaskRecord.objects.filter(task_id="kept").first() or record(TaskState.EXHAUSTED, task_id="kept")
    message = amqp.Message(body, application_headers=headers, content_type=content_type, content_encoding="utf-8")
    Payload.objects.update_or_create(record=task, defaults={"stored_at": NOW, **vars(stored(message))})
    task.refresh_from_db()
    for shown in (preview(task), reveal(task, Actor(None, "alice"))):
        assert shown.problem or (shown.args and shown.kwargs)
        assert shown.size == len(body)
    try:
        editable(task)
    except EditError as error:
        assert str(error)
    again = for_requeue(stored(message), **{h.GENERATION: 1})
    (sent,), _ = serialization.loads("F", serialization.dumps("F", (again.headers,)), 0)
    assert sent[h.GENERATION] == 1
    assert not UnreadableMessage.objects.exists()
