"""Hostile and broken messages in the queues of the collector."""

import gzip
import json
import pickle
from struct import pack
from typing import Any

import amqp
from django.db import connection

from celery_rmq_delay import headers as h
from celery_rmq_delay.contrib.django.models import Attempt, Payload, TaskRecord, TaskState, UnreadableMessage
from celery_rmq_delay.events.schema import EXHAUSTED, PARKED
from tests.support.brokers.lab import contents
from tests.support.django.reported import event, message
from tests.support.workers.hostile_messages import ALL, raw, table, text

MEGABYTE = "x" * 1_000_000
TEXTS = ("task", "argsrepr", "kwargsrepr", "root_id", h.MESSAGE, h.TRACEBACK)
HOSTILE = "<script>alert(1)</script>\0\u202e' OR 1=1 --\ud800 {} %s \\ \" [] NULL"


EVENTS: dict[str, bytes] = {
    "empty": b"",
    "no UTF-8": b"\xff\xfe\x00",
    "a list": b"[]",
    "nothing": b"{}",
    "deep": b"[" * 8_000,
    "large": event("e").to_json().replace(b"payments", b"p" * 5_000),
    "of another version": json.dumps({**json.loads(event("e").to_json()), "version": 2}).encode(),
    "of another kind": event("e").to_json().replace(b'"parked"', b'"melted"'),
    "with NUL": event("e").to_json().replace(b"orders.tasks.charge", b"orders\\u0000charge"),
    "with half a character": event("e").to_json().replace(b"orders.tasks.charge", b"orders\\ud800charge"),
    "with a number that is none": event("e").to_json().replace(b'"runtime_ms":12', b'"runtime_ms":NaN'),
    "with a large number": event("e").to_json().replace(b'"attempt":0', b'"attempt":99999999999999999999'),
    "from the year 0": event("e").to_json().replace(b"2026-01-31", b"0000-01-31"),
}


def test_events_that_cannot_be_read_are_kept_and_the_others_go_on(rig):
    for name, hostile in EVENTS.items():
        rig.send(event(f"before: {name}"), hostile)
    rig.send(event("after"))
    rig.collect()
    assert TaskRecord.objects.count() == len(EVENTS) + 1
    kept = UnreadableMessage.objects.all()
    assert {bytes(each.body) for each in kept} == set(EVENTS.values())
    assert all(each.error and each.queue == "rmq_delay.events" for each in kept)
    assert rig.left() == 0


UNREADABLE: dict[str, amqp.Message] = {
    "a correlation id that is no UTF-8": raw(pack(">H", 1 << 10) + b"\x02\xff\xfe"),
    "a time beyond the year 9999": raw(table((b"when", b"T" + pack(">Q", 1_800_000_000_000)))),
}


def test_messages_whose_properties_cannot_be_read_are_kept_as_they_came(rig):
    rig.send(message("before"), *UNREADABLE.values(), message("after"))
    rig.collect()
    assert set(TaskRecord.objects.values_list("task_id", flat=True)) == {"before", "after"}
    kept = {(bytes(each.body), bytes(each.headers)) for each in UnreadableMessage.objects.all()}
    assert kept == {(each.body, each._serialize_properties()) for each in UNREADABLE.values()}
    assert rig.left() == 0


def other_message(headers=None, body=b"body", **properties):
    return amqp.Message(body, application_headers=headers or {}, **properties)


#: The name of its header is not UTF-8.
NAMELESS = raw(table((b"\xff", text(b"a"))))
#: Messages, and the row of each.
READABLE: list[tuple[amqp.Message, dict[str, Any]]] = [
    (amqp.Message(b"no header"), {"payload__body": b"no header", "name": "", "queue": ""}),
    (message("no body", body=b""), {"task_id": "no body"}),
    (other_message({"id": "t" * 900, "task": "long"}), {"name": "long", "task_id__startswith": "ttt"}),
    (other_message({"id": 7, "task": "a"}), {"task_id": "7"}),
    (other_message({"id": ["a", {"b": 1}]}), {"task_id": "['a', {'b': 1}]"}),
    (other_message(correlation_id="c1"), {"task_id": "c1"}),
    (other_message(correlation_id="c\0"), {"task_id": "c\N{REPLACEMENT CHARACTER}"}),
    (message("hostile", **dict.fromkeys(TEXTS, HOSTILE)), {"task_id": "hostile", "kwargs_preview__contains": "%s"}),
    (message("large", body=MEGABYTE.encode(), argsrepr=MEGABYTE[:90_000]), {"task_id": "large"}),
    (
        message("no counts", **{h.ATTEMPTS: -5, h.CRASHES: "many", h.GENERATION: [], "retries": None}),
        {"task_id": "no counts", "attempt": 0, "crashes": 0, "generation": 0},
    ),
    (message("many", **{h.ATTEMPTS: 2**62, h.CRASHES: 2**62}), {"task_id": "many", "attempt": h.MAX_COUNT - 1}),
    (
        message("no times", **{h.EXHAUSTED_AT: "now", h.FIRST_FAILED: 12}),
        {"task_id": "no times", "first_failed_at": None},
    ),
    (other_message({"id": "deaths", "x-death": ["?", {"count": "x", "queue": 5}, 7]}), {"task_id": "deaths"}),
    (NAMELESS, {"payload__body": contents(NAMELESS), "name": ""}),
    (raw(table((b"id", text(b"\xff\xfe")))), {"task_id": r"b'\xff\xfe'"}),
    (message("pickled", body=pickle.dumps(print)), {"task_id": "pickled"}),
    (message("packed", body=gzip.compress(b"{}"), compression="application/x-gzip"), {"task_id": "packed"}),
    (other_message({"id": "latin"}, "ä".encode("latin-1"), content_encoding="latin-1"), {"task_id": "latin"}),
]


def test_strange_messages_become_rows_and_keep_their_bytes(rig):
    for number, (strange, _) in enumerate(READABLE):
        rig.send(message(f"good {number}"), strange)
    rig.collect()
    assert not UnreadableMessage.objects.exists(), UnreadableMessage.objects.get().error
    assert TaskRecord.objects.filter(state=TaskState.EXHAUSTED).count() == 2 * len(READABLE)
    for strange, expected in READABLE:
        assert bytes(TaskRecord.objects.get(**expected).payload.body) == contents(strange), expected
    assert rig.left() == 0


def test_messages_without_ids_are_distinguished_by_their_bytes(rig):
    rig.send(*(other_message({"number": number}, b"same") for number in range(3)), other_message(body=b"other"))
    rig.collect()
    rig.send(other_message({"number": 1}, b"same"))
    rig.collect()
    assert TaskRecord.objects.count() == Payload.objects.count() == Attempt.objects.count() == 4


def test_the_reason_of_a_dead_letter_is_recorded(rig):
    channel, queue = rig.channel, "strangers"
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "rmq_delay.exhausted", "x-max-length": 1}
    channel.queue_declare(queue, durable=True, auto_delete=False, arguments=arguments)
    for number in range(2):
        channel.basic_publish(other_message({"id": f"t{number}", "task": "a"}), "", queue)
    channel.queue_declare(queue, passive=True)
    rig.collect()
    found = TaskRecord.objects.get()
    assert (found.task_id, found.queue, found.reason, found.attempt) == ("t0", queue, "maxlen", 0)


def test_one_row_that_the_database_refuses_does_not_hold_up_its_batch(rig, monkeypatch):
    monkeypatch.setattr(h, "MAX_COUNT", 2**70)  # no known message gets here
    rig.send(*(message(f"t{number}") for number in range(40)), message("large", **{h.ATTEMPTS: 2**62}), event("t"))
    rig.collect()
    refused = UnreadableMessage.objects.count()
    assert refused == (connection.vendor == "postgresql"), "SQLite takes every number"
    assert TaskRecord.objects.count() == 42 - refused
    assert rig.left() == 0


def test_an_event_and_a_message_of_hostile_tasks_stay_apart(rig):
    ids = [
        "'; DROP TABLE rmq_delay_taskrecord; --",
        "a",
        "A",
        "ä",
        "a ",
        " a",
        "{a}",
        '"a"',
        "a\\",
        "NULL",
        "null",
        "%s",
    ]
    rig.send(*(event(task_id, EXHAUSTED, 1) for task_id in ids), *(message(task_id, 1) for task_id in ids))
    rig.send(*(event(task_id, PARKED, 0) for task_id in ids))
    rig.collect()
    assert sorted(TaskRecord.objects.values_list("task_id", flat=True)) == sorted(ids)
    assert Attempt.objects.count() == 2 * len(ids)


def test_hostile_messages_are_collected_between_healthy_ones(rig):
    hostile = list(ALL.values())
    for number, each in enumerate(hostile):
        rig.send(message(f"good {number}"), each, event(f"sent {number}"), contents(each))
    rig.collect()
    good = {f"{kind} {number}" for kind in ("good", "sent") for number in range(len(hostile))}
    assert good <= set(TaskRecord.objects.values_list("task_id", flat=True))
    exhausted = UnreadableMessage.objects.filter(queue="rmq_delay.exhausted")
    kept = [*Payload.objects.values_list("body", flat=True), *exhausted.values_list("body", flat=True)]
    assert {contents(each) for each in hostile} <= set(map(bytes, kept))
    bodies = UnreadableMessage.objects.filter(queue="rmq_delay.events").values_list("body", flat=True)
    assert {contents(each) for each in hostile} == set(map(bytes, bodies))
    assert rig.left() == 0
