"""Unreadable messages: downloads, and the pages of requeues and drops."""

import html
import json
import random

import amqp
import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.utils import timezone

from celery_rmq_delay.contrib.django.collecting.database import Database as Collected
from celery_rmq_delay.contrib.django.collecting.facts import Unreadable
from celery_rmq_delay.contrib.django.models import Operation, UnreadableMessage
from celery_rmq_delay.contrib.django.services import unreadable
from celery_rmq_delay.contrib.django.services.actors import Actor
from celery_rmq_delay.exceptions import RmqDelayError
from tests.support.brokers.kinds import POSTGRES_TABLES
from tests.support.django import people
from tests.support.django.admin_pages import BASE, messages_of
from tests.support.django.markup import faults
from tests.support.workers.hostile_messages import HEADERS, PROPERTIES, nested, raw, table, text

PAGE = f"{BASE}/unreadablemessage/"
BYTES = bytes(range(256))
ALICE = Actor(None, "alice")
VIEW = "view_unreadablemessage"
ACTS = {"download": "view_payload_taskrecord", "requeue": "requeue_taskrecord", "drop": "discard_taskrecord"}


def collected(digest="d1", queue="rmq_delay.exhausted", **properties):
    """Return a message as the collector stores it."""
    given = amqp.Message(BYTES, **properties)._serialize_properties()
    Collected().write([Unreadable(digest, queue, "ValueError: bad", BYTES, given)])
    return UnreadableMessage.objects.get(digest=digest)


@pytest.fixture
def message(tables, shop):
    return collected(
        application_headers={"task": "a", "x-death": [{"queue": "payments", "reason": "rejected", "count": 3}]},
        correlation_id="c1",
        delivery_mode=2,
    )


def page_of(answer):
    assert answer.status_code == 200
    page: str = answer.content.decode()
    assert faults(page) == []
    return html.unescape(page)


def posted(client, row, act, **sent):
    return client.post(f"{PAGE}{row.pk}/{act}/", sent)


@POSTGRES_TABLES
def test_a_download_has_the_original_bytes_and_is_logged_as_a_reveal(message):
    client = people.superuser()
    answer = posted(client, message, "download", part="body")
    assert answer.content == BYTES
    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["Content-Disposition"] == f'attachment; filename="message-{message.pk}.bin"'
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert "no-store" in answer["Cache-Control"]
    answer = posted(client, message, "download", part="properties")
    found = json.loads(answer.content)
    assert found["properties"]["correlation_id"] == "c1"
    assert found["properties"]["application_headers"]["task"] == "a"
    assert bytes.fromhex(found["properties_hex"]) == bytes(message.headers)
    assert answer["Content-Disposition"].endswith('.json"')
    details = {"unreadable_message": "d1", "from_queue": "rmq_delay.exhausted", "size": 256}
    found = list(Operation.objects.values_list("kind", "state", "actor", "ok", "details"))
    assert found == [("reveal", "DONE", "alice", 1, details)] * 2
    assert set(LogEntry.objects.values_list("change_message", flat=True)) == {"Message revealed"}


@pytest.mark.parametrize("act", ACTS)
def test_each_act_needs_its_permission_and_a_post(message, act):
    others = {needed for name, needed in ACTS.items() if name != act}
    bob = people.staff(VIEW, *others)
    before = UnreadableMessage.objects.values().get()
    assert f"/{act}/" not in page_of(bob.get(f"{PAGE}{message.pk}/change/"))
    for sent in ({}, {"confirm": "1", "queue": "payments"}):
        assert posted(bob, message, act, **sent).status_code == 403
    assert posted(people.staff(ACTS[act], name="carol"), message, act, confirm="1").status_code == 403
    eve = people.staff(VIEW, ACTS[act], name="eve")
    assert f"/{act}/" in page_of(eve.get(f"{PAGE}{message.pk}/change/"))
    assert eve.get(f"{PAGE}{message.pk}/{act}/")["Location"] == f"{PAGE}{message.pk}/change/"
    assert not Operation.objects.exists()
    assert posted(eve, message, act).status_code == 200
    assert UnreadableMessage.objects.values().get() == before


def test_the_page_of_a_requeue_names_the_queue_that_a_message_came_from(message):
    client = people.superuser()
    page = page_of(posted(client, message, "requeue"))
    assert 'value="payments"' in page
    assert "it can be there twice, but is never lost" in page
    assert "not persistent" not in page
    event = collected("d2", "rmq_delay.events", expiration="5000", application_headers={"rmq-delay-queue": "payments"})
    page = page_of(posted(client, event, "requeue"))
    assert 'value="payments"' not in page
    assert "RabbitMQ removes it from the queue after 5000 ms." in page
    assert "not persistent" in page
    assert UnreadableMessage.objects.count() == 2


@pytest.mark.parametrize("name", [*PROPERTIES, *HEADERS, "random", "nested", "empty"])
def test_hostile_properties_break_no_page_and_no_download(tables, shop, name):
    more = {
        "random": raw(random.Random(3).randbytes(300)),
        "nested": raw(table((b"deep", nested(200)), (b"\xff", text(b"\xff")))),
        "empty": raw(b""),
    }
    given = {**PROPERTIES, **HEADERS, **more}[name]._serialize_properties()
    queue = "<script>alert(1)</script>"
    Collected().write([Unreadable("d1", queue, "e", BYTES, given)])
    row, client = UnreadableMessage.objects.get(), people.superuser()
    page = page_of(client.get(f"{PAGE}{row.pk}/change/"))
    answer = posted(client, row, "requeue")
    if "cannot be decoded: it can only be downloaded or dropped" in page:
        assert "/requeue/" not in page
        assert answer.status_code == 302
        with pytest.raises(RmqDelayError, match="cannot be decoded"):
            unreadable.requeue(row, "payments", actor=ALICE)
    else:
        assert "/requeue/" in page
        page_of(answer)
    page_of(posted(client, row, "drop"))
    assert bytes.fromhex(json.loads(posted(client, row, "download", part="properties").content)["properties_hex"]) == (
        given
    )
    assert posted(client, row, "drop", confirm="1", reason="<script>alert(1)</script>").status_code == 302
    assert not UnreadableMessage.objects.exists()
    (dropped,) = Operation.objects.filter(kind="discard")
    assert "alert(1)</script>" not in client.get(f"{BASE}/operation/{dropped.pk}/change/").content.decode()


def test_a_message_that_its_headers_route_to_more_queues_cannot_be_requeued(tables, shop):
    row = collected(application_headers={"CC": ["other"]})
    with pytest.raises(RmqDelayError, match="header CC would route it to other queues"):
        unreadable.requeue(row, "payments", actor=ALICE)


@POSTGRES_TABLES
def test_a_drop_deletes_the_message_once_and_is_in_the_audit_log(message):
    alice, bob = people.superuser(), people.superuser("bob")
    assert "cannot be undone" in page_of(posted(alice, message, "drop"))
    done = alice.post(f"{PAGE}{message.pk}/drop/", {"confirm": "1", "reason": "rubbish"}, follow=True)
    assert messages_of(done) == ["The message was dropped."]
    assert not UnreadableMessage.objects.exists()
    late = bob.post(f"{PAGE}{message.pk}/drop/", {"confirm": "1", "reason": "me too"}, follow=True)
    assert messages_of(late) == ["Another user has requeued or dropped this message. Nothing was changed."]
    (operation,) = Operation.objects.all()
    assert (operation.kind, operation.actor, operation.reason, operation.ok) == ("discard", "alice", "rubbish", 1)
    assert operation.details == {"unreadable_message": "d1", "from_queue": "rmq_delay.exhausted", "size": 256}
    assert "rubbish" in LogEntry.objects.get().change_message
    page_of(alice.get(f"{BASE}/operation/{operation.pk}/change/"))
    with pytest.raises(RmqDelayError, match="Another user has requeued or dropped"):
        unreadable.drop(message, actor=ALICE)


@POSTGRES_TABLES
def test_while_one_user_requeues_a_message_no_other_can_act_on_it(message):
    rows = UnreadableMessage.objects.filter(pk=message.pk)
    rows.update(claimed_at=timezone.now())
    for act in (
        lambda: unreadable.requeue(message, "payments", actor=ALICE),
        lambda: unreadable.drop(message, actor=ALICE),
    ):
        with pytest.raises(RmqDelayError, match="Another user requeues this message at the moment"):
            act()
    refused = people.superuser().post(f"{PAGE}{message.pk}/drop/", {"confirm": "1"}, follow=True)
    assert "Another user requeues" in messages_of(refused)[0]
    assert not Operation.objects.exists()
    rows.update(claimed_at=timezone.now() - unreadable.CLAIM_LASTS)
    assert unreadable.drop(message, actor=ALICE).ok == 1


@POSTGRES_TABLES
def test_a_message_that_was_received_again_meanwhile_is_not_deleted(message):
    Collected().write([Unreadable("d1", message.queue, "e", BYTES, bytes(message.headers))] * 2)
    again = UnreadableMessage.objects.get()
    assert again.received_at > message.received_at
    with pytest.raises(RmqDelayError, match="it was received again"):
        unreadable.drop(message, actor=ALICE)
    assert unreadable.drop(again, actor=ALICE).ok == 1


@POSTGRES_TABLES
def test_without_a_broker_a_message_stays_and_the_page_shows_why(message):
    client = people.superuser()
    page = page_of(posted(client, message, "requeue", confirm="1", queue="payments", reason="try"))
    assert "The message was not requeued and stays here: broker unreachable: " in page
    row = UnreadableMessage.objects.get()
    assert (row.claimed_at, row.received_at) == (None, message.received_at)
    operation = Operation.objects.get()
    assert (operation.kind, operation.ok, operation.failed, operation.reason) == ("requeue", 0, 1, "try")
    assert operation.details["into_queue"] == "payments"
    assert LogEntry.objects.count() == 1
    assert "This field is required" in page_of(posted(client, message, "requeue", confirm="1", queue=""))


def test_a_requeue_commits_its_steps_in_a_project_that_wraps_requests(message):
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        assert "stays here" in page_of(posted(people.superuser(), message, "requeue", confirm="1", queue="payments"))
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False
