"""The connection on which a worker publishes copies: it never blocks the worker."""

import threading
from functools import partial
from typing import Any

import amqp
import kombu
import pytest
from celery.utils.timer2 import Timer
from kombu.asynchronous import Hub

from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.amqp.route import Route
from celery_rmq_delay.exceptions import PublishError, UnroutableError
from celery_rmq_delay.worker.confirming import ConfirmingConnection
from tests.support.brokers.alarms import alarm
from tests.support.brokers.lab import contents
from tests.support.brokers.proxy import elsewhere
from tests.support.waiting import BUSY, wait_for


class Consumer:
    """The part of Celery's consumer that the connection uses, with an event loop that `run` drives, or without one."""

    hostname = "w@test"

    def __init__(self, connection, *, hub=True):
        self.connection_errors = connection.connection_errors
        self.hub = Hub() if hub else None
        self.timer: Any = self.hub.timer if self.hub else Timer()
        self.call_soon = self.hub.call_soon if self.hub else None


class Copies:
    """A `ConfirmingConnection` with the results of its callbacks."""

    def __init__(self, url, *, hub=True, heartbeat=0):
        self.source = kombu.Connection(url, heartbeat=heartbeat)
        self.source.connect()
        self.consumer = Consumer(self.source, hub=hub)
        self.answers: dict[str, PublishError | None] = {}
        #: How often a channel was ended.
        self.ended: list[None] = []
        self.lock = threading.RLock()
        on_missing = partial(self.ended.append, None)
        self.connection = ConfirmingConnection(self.consumer, self.source, on_missing, lock=self.lock)
        self.connection.open()

    def publish(self, body, queue="", exchange=""):
        def done(error):
            assert body not in self.answers, "called twice"
            self.answers[body] = error

        self.connection.publish(amqp.Message(body, delivery_mode=2), Route(exchange, queue), done)

    def run(self, until):
        """Run the event loop until a condition is true."""
        wait_for(lambda: until() or self.turn(), "it in the event loop", pause=0)

    def turn(self):
        if self.consumer.hub is not None:
            self.consumer.hub.run_once()

    def close(self):
        self.connection.close()
        if self.consumer.hub is not None:
            self.consumer.hub.close()
        else:
            self.consumer.timer.stop()
        self.source.collect()  # a proxy may hold the answer that it would wait for


@pytest.fixture
def make_copies(lab):
    """A function that connects for copies, to a broker or to a proxy before it."""
    made: list[Copies] = []

    def make(url="", **options):
        made.append(Copies(url or lab.url, **options))
        return made[-1]

    yield make
    for copies in made:
        copies.close()


def through(proxy, lab):
    return elsewhere(lab.url, proxy.port)


@pytest.mark.brokers
@pytest.mark.parametrize("hub", [True, False], ids=["event loop", "threads"])
def test_each_publish_is_called_back_with_the_answer_of_the_broker(lab, make_copies, hub):
    queue, copies = lab.queue(), make_copies(hub=hub)
    for number in range(20):
        copies.publish(f"good {number}", queue)
        copies.publish(f"missing {number}", "no-such-queue")
    copies.run(lambda: len(copies.answers) == 40)

    for number in range(20):
        assert copies.answers[f"good {number}"] is None
        assert isinstance(copies.answers[f"missing {number}"], UnroutableError)


def test_a_thread_that_settles_and_the_one_that_reads_confirms_do_not_wait_for_each_other(lab, make_copies):
    queue, copies = lab.queue(), make_copies(hub=False)
    confirmed, both = threading.Event(), threading.Event()

    def done(_error):
        confirmed.set()
        with copies.lock:  # as the end of an attempt is recorded
            both.set()

    def settle():
        with copies.lock:
            copies.connection.publish(amqp.Message("first"), Route("", queue), done)
            confirmed.wait(0.5)  # the reader may be in the callback now; it must not be
            copies.publish("second", queue)

    threading.Thread(target=settle, daemon=True).start()
    assert both.wait(BUSY)
    wait_for(lambda: "second" in copies.answers, seconds=BUSY)


def test_a_probe_detects_an_alarm_of_the_broker(classic_lab, own_broker, make_copies):
    copies = make_copies()
    with alarm(own_broker):
        copies.connection.probe()
        copies.run(lambda: copies.connection.is_blocked)
        assert not copies.connection.waiting
    copies.run(lambda: not copies.connection.is_blocked)


@pytest.mark.brokers
def test_copies_left_unconfirmed_by_a_lost_connection_are_published_again(lab, proxy, make_copies):
    queue, copies = lab.queue(), make_copies(through(proxy, lab))
    copies.publish("answered", queue)
    copies.run(lambda: "answered" in copies.answers)
    proxy.swallow()
    copies.publish("unknown", queue)
    wait_for(lambda: ready_counts(lab.connection, [queue])[queue] == 2)
    order = ["before"]
    copies.connection.after_pending(lambda: order.append("after"))
    proxy.cut()
    copies.run(lambda: len(copies.answers) == 2)

    assert copies.answers == {"answered": None, "unknown": None}
    assert order == ["before", "after"]
    assert [contents(lab.get(queue, ack=True)) for _ in range(3)] == [b"answered", b"unknown", b"unknown"]
    assert lab.channel.basic_get(queue) is None


@pytest.mark.slow
def test_a_connection_on_which_the_broker_is_silent_is_opened_again(lab, proxy, make_copies):
    queue, copies = lab.queue(), make_copies(through(proxy, lab), heartbeat=2)
    proxy.hold()
    copies.publish("unread", queue)
    copies.run(lambda: "unread" in copies.answers)
    assert copies.answers == {"unread": None}


@pytest.mark.brokers
def test_a_message_that_ends_the_channel_is_refused_and_doubles_no_other_twice(lab, make_copies):
    queue, copies = lab.queue(), make_copies()
    for number in range(10):
        copies.publish(str(number), queue)
        copies.publish(f"nowhere {number}", "key", exchange="no-such-exchange")
    copies.run(lambda: len(copies.answers) == 20)

    assert copies.ended
    for number in range(10):
        assert copies.answers[str(number)] is None
        assert "no exchange 'no-such-exchange'" in str(copies.answers[f"nowhere {number}"])
    bodies = []
    while message := lab.channel.basic_get(queue, no_ack=True):
        bodies.append(contents(message))
    assert sorted(set(bodies)) == [str(number).encode() for number in range(10)]
    assert len(bodies) <= 11, "only what was written before the first end of a channel can be there twice"


def test_the_end_of_a_worker_waits_for_confirms_but_not_in_an_alarm(classic_lab, own_broker, make_copies, caplog):
    queue, copies = classic_lab.queue(), make_copies()
    copies.publish("before", queue)
    copies.connection.drain(BUSY)
    assert copies.answers == {"before": None}
    assert not caplog.messages
    with alarm(own_broker):
        copies.publish("in the alarm", queue)
        copies.connection.drain(10 * BUSY)
        assert "1 publishes without a confirm at shutdown: their tasks are delivered again" in caplog.messages
        copies.connection.close()
    assert copies.answers == {"before": None}
