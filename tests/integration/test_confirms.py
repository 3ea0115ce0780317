"""Callbacks run after the broker has confirmed the message."""

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import amqp
import kombu
import pytest
from amqp.exceptions import NotFound
from celery import Celery

from celery_rmq_delay.amqp import confirms
from celery_rmq_delay.amqp.confirms import (
    ConfirmingPublisher,
    _Pending,
    confirming_channel,
    publisher_on,
)
from celery_rmq_delay.amqp.copies import copy_of
from celery_rmq_delay.amqp.objects import Queue
from celery_rmq_delay.amqp.route import Route
from celery_rmq_delay.exceptions import NackedError, OutcomeUnknownError, PublishError, UnroutableError
from celery_rmq_delay.headers import without_dead_letters
from celery_rmq_delay.publish import forward
from tests.support.brokers import parking
from tests.support.brokers.alarms import alarm
from tests.support.waiting import BUSY

pytestmark = pytest.mark.brokers

FULL = {"x-max-length": 1, "x-overflow": "reject-publish"}


def message(body="body"):
    return amqp.Message(body, delivery_mode=2)


class Answers:
    """Collects the callbacks of a `ConfirmingPublisher`."""

    def __init__(self):
        self.found: dict[Any, PublishError | None] = {}

    def of(self, name):
        def done(error):
            assert name not in self.found, "called twice"
            self.found[name] = error

        return done


def drain(publisher, seconds=BUSY):
    """Read answers until all have arrived, or until none arrives for some seconds."""
    with suppress(OSError):
        publisher.wait(seconds)


def test_a_message_that_the_broker_has_is_published(lab):
    queue = lab.queue()
    publisher_on(lab.channel).send(message("there"), Route("", queue))
    assert lab.get(queue, ack=True).body == "there"


def test_a_message_that_reaches_no_queue_is_an_error_with_the_fix(lab):
    with pytest.raises(UnroutableError, match=r"for 'no-such-queue': run `celery -A \S+ rmq-delay apply`"):
        publisher_on(lab.channel).send(message(), Route("", "no-such-queue"))
    queue = lab.queue()
    publisher_on(lab.channel).send(message(), Route("", queue))
    assert lab.get(queue, ack=True)


def fill(lab):
    queue = lab.queue(**FULL)
    with pytest.raises(NackedError):
        for _ in range(10):  # quorum queues take a few more
            publisher_on(lab.channel).send(message(), Route("", queue))
    return queue


def test_a_message_that_the_broker_refuses_is_an_error(lab):
    queue = fill(lab)
    with pytest.raises(NackedError, match=queue):
        publisher_on(lab.channel).send(message(), Route("", queue))


def test_each_message_on_a_channel_gets_its_own_answer_whatever_else_was_published_there(lab):
    good, full = lab.queue(), fill(lab)
    publisher = publisher_on(lab.channel)
    for _ in range(3):
        lab.channel.basic_publish(message("an event"), routing_key=good)  # its confirm is not waited for
        with pytest.raises(NackedError):
            publisher.send(message(), Route("", full))
        publisher.send(message(), Route("", good))
    assert publisher.waiting == 0


def test_a_channel_that_an_error_has_closed_gets_answers_again_after_it_is_open_again(lab):
    good, full = lab.queue(), fill(lab)
    for _ in range(2):
        publisher_on(lab.channel).send(message(), Route("", good))
        with pytest.raises(NotFound):
            publisher_on(lab.channel).send(message(), Route("no-such-exchange", good))
        with pytest.raises(NackedError):
            publisher_on(lab.channel).send(message(), Route("", full))


def test_a_returned_message_in_another_encoding_is_unroutable(lab):
    latin = amqp.Message("\xe4".encode("latin-1"), content_encoding="latin-1")
    with pytest.raises(UnroutableError):
        publisher_on(lab.channel).send(latin, Route("", "no-such-queue"))


def test_the_publisher_waits_for_no_answer_where_the_app_has_set_confirm_publish(lab):
    full, answers = fill(lab), Answers()
    with kombu.Connection(lab.connection.as_uri(include_password=True)) as connection:
        connection.transport_options = {"confirm_publish": True}
        publisher = ConfirmingPublisher(confirming_channel(connection))
        publisher.publish(message(), Route("", full), answers.of("full"))
        assert publisher.waiting
        drain(publisher)
    assert isinstance(answers.found["full"], NackedError)


def test_the_publisher_calls_back_with_the_answer_of_the_broker(lab):
    good, full, answers = lab.queue(), fill(lab), Answers()
    publisher = ConfirmingPublisher(confirming_channel(lab.connection))
    for number in range(50):
        publisher.publish(message(str(number)), Route("", good), answers.of(number))
        publisher.publish(message(), Route("", full), answers.of(f"full {number}"))
        publisher.publish(message(), Route("", "no-such-queue"), answers.of(f"missing {number}"))
    assert publisher.waiting
    drain(publisher)
    assert publisher.waiting == 0
    for number in range(50):
        assert answers.found[number] is None
        assert isinstance(answers.found[f"full {number}"], NackedError)
        assert isinstance(answers.found[f"missing {number}"], UnroutableError)
    assert {lab.get(good, ack=True).body for _ in range(50)} == {str(number) for number in range(50)}


def test_publishing_does_not_wait(lab):
    queue, answers = lab.queue(), Answers()
    publisher = ConfirmingPublisher(confirming_channel(lab.connection))
    publisher.publish(message(), Route("", queue), answers.of("first"))
    assert publisher.waiting == 1
    drain(publisher)
    assert answers.found == {"first": None}


def test_a_callback_may_publish_again(lab):
    queue, answers = lab.queue(), Answers()
    publisher = ConfirmingPublisher(confirming_channel(lab.connection))

    def again(error):
        answers.of("first")(error)
        for number in range(3):
            publisher.publish(message(), Route("", queue), answers.of(number))

    publisher.publish(message(), Route("", queue), again)
    drain(publisher)
    assert answers.found == {"first": None, 0: None, 1: None, 2: None}


def test_a_message_that_finds_its_queue_on_the_next_connection_is_not_unroutable(lab):
    answers, queue = Answers(), lab.queue()
    lab.channel.queue_delete(queue)
    with kombu.Connection(lab.connection.as_uri(include_password=True)) as lost:
        publisher = ConfirmingPublisher(confirming_channel(lost))
        publisher.publish(message("late"), Route("", queue), answers.of("late"))
        (sent,) = publisher._pending.values()
        while not sent.returned:
            lost.drain_events(timeout=BUSY)  # one frame: the confirm follows the returned message
        assert not answers.found
        lab.channel.queue_declare(queue, durable=True, auto_delete=False)
        publisher.attach(confirming_channel(lab.connection))
        drain(publisher)
    assert answers.found == {"late": None}
    assert lab.get(queue, ack=True).body == "late"


def test_a_confirm_after_its_queue_may_have_expired_is_no_proof():
    leased = Route("", "level", leased=(Queue("level"),), lease_ms=5000)
    pending = _Pending(1, amqp.Message(), leased, print, sent_at=time.monotonic())
    assert pending.error is None
    pending.sent_at -= 6
    assert isinstance(pending.error, OutcomeUnknownError)
    assert replace(pending, route=replace(leased, leased=())).error is None


def test_after_pending_waits_for_earlier_publishes_only(lab):
    queue = lab.queue()
    order: list[int | str] = []
    publisher = ConfirmingPublisher(confirming_channel(lab.connection))
    publisher.after_pending(lambda: order.append("nothing to wait for"))
    assert order == ["nothing to wait for"]

    def publish(number):
        """Publish messages one after the other: each answer starts the next publish, so that one is always pending."""

        def done(error):
            assert error is None
            order.append(number)
            if number < 50:
                publish(number + 1)

        publisher.publish(message(), Route("", queue), done)

    publish(0)  # its answer is read below, and not before
    publisher.after_pending(lambda: order.append("answered"))
    assert order == ["nothing to wait for"]
    drain(publisher)

    # Answers may be read during the next publishes, so that some arrive in between.
    assert order.index(0) < order.index("answered") < 10, "it waited for what was published later"
    assert len(order) == 1 + 51 + 1


def test_no_callback_is_called_for_a_lost_connection(lab):
    """The originals are unacked, so the broker delivers them again."""
    queue, answers = lab.queue(), Answers()
    connection = lab.connect()
    publisher = ConfirmingPublisher(confirming_channel(connection))
    publisher.publish(message(), Route("", queue), answers.of("pending"))
    connection.connection.transport.sock.close()
    drain(publisher, 0.5)
    assert answers.found == {}
    assert publisher.waiting == 1


def test_a_queue_deleted_between_two_publishes_fails_the_second_only(classic_lab):
    lab = classic_lab
    queue, answers = lab.queue(), Answers()
    publisher = ConfirmingPublisher(confirming_channel(lab.connection))
    publisher.publish(message("first"), Route("", queue), answers.of("first"))
    drain(publisher)
    lab.channel.queue_delete(queue)
    publisher.publish(message("second"), Route("", queue), answers.of("second"))
    drain(publisher)
    assert answers.found["first"] is None
    assert isinstance(answers.found["second"], UnroutableError)


def test_a_call_after_one_without_a_confirm_gets_a_confirm_of_its_own(lab, own_broker, monkeypatch):
    """Otherwise the late confirm of the first would count for the next one, which the broker refuses here."""
    good, full = lab.queue(), fill(lab)
    exact = parking.exact_delays(exact_queue_type="classic")

    def call(queue, body):
        with forward.confirming(app) as producer:
            redirect = forward.Redirect(producer, exact, Route("", queue))
            redirect.publish(body, retry=True, retry_policy=app.conf.task_publish_retry_policy)

    with Celery(broker=lab.url, set_as_current=False) as app:
        call(good, "before")
        with monkeypatch.context() as patch, alarm(own_broker), pytest.raises(OutcomeUnknownError, match=good):
            patch.setattr(confirms, "CONFIRM_TIMEOUT", 1.0)
            while True:  # until the alarm has reached the connection
                call(good, "unknown")
        with pytest.raises(NackedError, match=full):
            call(full, "refused")
        call(good, "after")
        bodies = [lab.get(good, ack=True).body for _ in range(2)]
        while "after" not in bodies[-1]:
            bodies.append(lab.get(good, ack=True).body)
    assert "before" in bodies[0]


def test_a_copy_has_the_body_and_properties_of_the_message_and_no_expiration(lab):
    queue, other = lab.queue(), lab.queue()
    body = b"\x80\x00\xff raw bytes"
    lab.publish(
        queue, body, headers={"a": 1}, expiration="60000", priority=3, reply_to="r", correlation_id="c",
        content_type="application/x-python-serialize", content_encoding="binary", message_id="m",
    )  # fmt: skip
    received: list[Any] = []
    source = kombu.Queue(queue, no_declare=True)
    consumer = kombu.Consumer(lab.connection.channel(), [source], auto_declare=False, on_message=received.append)
    with consumer:
        while not received:
            lab.connection.drain_events(timeout=BUSY)
        publisher_on(lab.channel).send(copy_of(received[0], {"b": 2}), Route("", other))
        received[0].ack()
    copy = lab.get(other, ack=True)
    assert copy.body == body
    assert without_dead_letters(copy.headers) == {"b": 2}  # quorum queues add a count
    assert "expiration" not in copy.properties
    expected = {"priority": 3, "reply_to": "r", "correlation_id": "c", "message_id": "m", "delivery_mode": 2}
    assert expected.items() <= copy.properties.items()
    assert copy.properties["content_type"] == "application/x-python-serialize"
    assert copy.properties["content_encoding"] == "binary"
