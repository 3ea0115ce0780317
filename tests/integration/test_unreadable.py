"""Unreadable messages on a real broker: requeued unchanged, or kept."""

import threading
from typing import Any

import amqp
import kombu
import pytest
from django.db import connection

from celery_rmq_delay.amqp.confirms import ConfirmingPublisher
from celery_rmq_delay.amqp.connections import tolerant
from celery_rmq_delay.contrib.django.models import Operation, UnreadableMessage
from celery_rmq_delay.contrib.django.services import unreadable
from celery_rmq_delay.contrib.django.services.operations.publishing import Publisher
from celery_rmq_delay.exceptions import RmqDelayError
from tests.support.brokers.lab import contents
from tests.support.django import shop
from tests.support.django.collecting import EVENTS, EXHAUSTED
from tests.support.django.desk import ALICE, BOB, Desk
from tests.support.workers.hostile_messages import raw, table, text

BODY = bytes(range(256))


@pytest.fixture
def desk(rig):
    with shop.of(shop.make(rig.url), broker_timeout=30):
        yield Desk(rig.url)


def kept(rig, queue=EXHAUSTED, **properties):
    """Return a message that a collector has taken from a queue and could not read."""
    sent = amqp.Message(BODY, **properties)
    with kombu.Connection(rig.url) as opened:
        channel: Any = opened.channel()
        channel.basic_publish(sent, "", queue)
        channel.queue_declare(queue, passive=True)
    rig.collect()
    return UnreadableMessage.objects.latest("pk")


def event(rig):
    death = {"queue": "payments", "reason": "rejected", "count": 3}
    headers = {"task": "payments.charge", "number": 2**40, "bytes": "\N{SNOWMAN}", "x-death": [death]}
    return kept(
        rig, EVENTS, application_headers=headers, correlation_id="c1", reply_to="answers", priority=3, delivery_mode=2,
        content_type="application/x-own", content_encoding="binary", message_id="m1", type="kind", app_id="app",
    )  # fmt: skip


@pytest.mark.brokers
def test_a_requeue_publishes_bytes_and_properties_unchanged_and_deletes_the_row(rig, desk):
    row = event(rig)
    sent = unreadable.readable(row).message
    assert sent is not None
    done = unreadable.requeue(row, "payments", actor=ALICE, reason="fixed")
    assert (done.problem, done.operation.message, done.operation.ok) == ("", "requeued to payments", 1)
    (message,) = desk.taken()
    assert contents(message) == BODY
    expected = {**sent.properties, "application_headers": {**sent.properties["application_headers"]}}
    assert {**message.properties, "application_headers": {**message.headers}} == expected
    assert not UnreadableMessage.objects.exists()


def stored(given):
    """Return a row with the properties of a message."""
    row = UnreadableMessage.objects.create(
        digest="d", queue="q", error="e", body=BODY, headers=given._serialize_properties(), received_at="2026-01-31T12Z"
    )
    row.refresh_from_db()
    return row


def test_a_header_whose_name_is_no_utf_8_arrives_unchanged(rig, desk):
    row = stored(raw(table((b"\xff", text(b"\xfe")))))
    assert unreadable.requeue(row, "payments", actor=ALICE).problem == ""
    with kombu.Connection(rig.url, transport_options=tolerant(None)) as opened:
        (message,) = (opened.channel().basic_get("payments", no_ack=True),)
    assert message.properties["application_headers"] == {b"\xff": b"\xfe"}


def test_a_full_queue_refuses_a_message_which_stays(rig, desk):
    row = event(rig)
    desk.delete()
    desk.declare(**{"x-max-length": 1, "x-overflow": "reject-publish"})
    with kombu.Connection(rig.url) as opened:
        channel: Any = opened.channel()
        channel.confirm_select()
        channel.basic_publish_confirm(amqp.Message(b"first"), "", "payments")
    done = unreadable.requeue(row, "payments", actor=ALICE)
    assert done.problem == ("The message was not requeued and stays here: queue payments refused it: it is full.")
    assert (done.operation.ok, done.operation.failed) == (0, 1)
    assert len(desk.taken()) == 1
    assert unreadable.requeue(row, "payments", actor=BOB).problem == ""
    assert [contents(each) for each in desk.taken()] == [BODY]


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        ("gone", "there is no queue gone"),
        ("rmq_delay.payments.record", "rmq_delay.payments.record is not a queue of tasks"),
        (EXHAUSTED, "rmq_delay.exhausted is not a queue of tasks"),
        ("\N{SNOWMAN}" * 90, "no queue has a name of more than 255 bytes"),
    ],
)
def test_a_message_stays_where_the_queue_is_none_of_tasks(rig, desk, queue, why):
    row = event(rig)
    assert f"stays here: {why}" in unreadable.requeue(row, queue, actor=ALICE).problem
    found = UnreadableMessage.objects.get()
    assert (found.claimed_at, bytes(found.body)) == (None, BODY)
    assert desk.taken() == []


def test_a_broker_that_refuses_the_message_gives_its_reason_and_the_row_stays(rig, desk):
    row = stored(amqp.Message(BODY, user_id="another"))
    assert "the broker refused it: PRECONDITION_FAILED" in unreadable.requeue(row, "payments", actor=ALICE).problem
    assert UnreadableMessage.objects.get().claimed_at is None


def test_a_message_that_the_collector_receives_again_stays_in_the_table(rig, desk, monkeypatch):
    row = event(rig)
    publish = Publisher.publish

    def collected_at_once(self, messages):
        found = publish(self, messages)
        rig.collect()
        return found

    monkeypatch.setattr(Publisher, "publish", collected_at_once)
    assert unreadable.requeue(row, EVENTS, actor=ALICE).problem == ""
    again = UnreadableMessage.objects.get()
    assert (again.digest, bytes(again.body), again.claimed_at) == (row.digest, BODY, None)
    assert again.received_at > row.received_at
    assert rig.left() == 0


def test_a_crash_after_the_confirm_gives_a_double_and_no_loss(rig, desk, monkeypatch):
    row = event(rig)

    class Crashed(BaseException):
        """The process ends here."""

    def crash(*_):
        raise Crashed

    with monkeypatch.context() as patched:
        patched.setattr(unreadable, "_settled", crash)
        with pytest.raises(Crashed):
            unreadable.requeue(row, "payments", actor=ALICE)
    assert [contents(each) for each in desk.taken()] == [BODY]
    with pytest.raises(RmqDelayError, match="at the moment"):
        unreadable.requeue(row, "payments", actor=BOB)
    UnreadableMessage.objects.update(claimed_at=row.received_at - unreadable.CLAIM_LASTS)
    assert unreadable.requeue(row, "payments", actor=BOB).problem == ""
    assert [contents(each) for each in desk.taken()] == [BODY]


def test_without_a_confirm_a_message_stays_with_an_unknown_outcome(rig, desk, monkeypatch):
    row = event(rig)

    def silent(self, timeout):
        raise TimeoutError

    monkeypatch.setattr(ConfirmingPublisher, "wait", silent)
    done = unreadable.requeue(row, "payments", actor=ALICE)
    assert done.problem.startswith("It is unknown whether the message is in the queue payments: no confirm in 30 s.")
    assert (done.operation.ok, done.operation.failed, done.operation.unknown) == (0, 0, 1)
    assert UnreadableMessage.objects.get().claimed_at is None


def test_of_two_users_at_once_one_requeues_the_message(rig, desk):
    row = event(rig)
    start, problems = threading.Barrier(2), list[str]()

    def act(actor):
        start.wait()
        try:
            problems.append(unreadable.requeue(row, "payments", actor=actor).problem)
        except RmqDelayError as error:
            problems.append(str(error))
        finally:
            connection.close()

    threads = [threading.Thread(target=act, args=(actor,)) for actor in (ALICE, BOB)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(map(bool, problems)) == [False, True]
    assert len(desk.taken()) == 1
    assert Operation.objects.count() == 1
