"""Nothing waits for the broker on a link: in an alarm, cut off, without a reply, after a loss; for all that use one."""

import threading
import time
from typing import Any

import amqp
import kombu
import pytest
from celery import Celery
from celery.utils.timer2 import Timer

from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.amqp.connections import another
from celery_rmq_delay.amqp.link import Link
from celery_rmq_delay.amqp.route import Route
from celery_rmq_delay.events.writer import EventWriter
from celery_rmq_delay.worker.bootstep import _Dropping
from celery_rmq_delay.worker.confirming import ConfirmingConnection
from tests.support.brokers.alarms import alarm
from tests.support.brokers.proxy import elsewhere
from tests.support.waiting import BUSY, wait_for

#: More unread bytes than the kernels at both ends buffer, in pieces.
PIECE, PIECES = b"x" * 100_000, 150


class Copies:
    """A worker's copies, without an event loop: a thread reads."""

    #: Whether what is published without a connection arrives later.
    KEEPS = True
    hostname, hub = "w@test", None

    def __init__(self, url, queue):
        self._queue = queue
        self._source = kombu.Connection(url)
        self._source.connect()
        self.connection_errors = self._source.connection_errors
        self.timer = Timer()
        self._connection = ConfirmingConnection(self, self._source, lock=threading.RLock())
        self._connection.open()

    def send(self, body):
        self._connection.publish(amqp.Message(body), Route("", self._queue), bool)

    def turn(self):
        """Nothing: the thread does it."""

    def close(self):
        self._connection.close()
        self.timer.stop()
        self._source.collect()


class Events:
    """A worker's events."""

    KEEPS = True

    def __init__(self, url, queue):
        self._url = url
        self._writer = EventWriter(self._connect, queue)
        self._writer.start()
        self.send, self.turn, self.close = self._writer.write, self._writer.tick, self._writer.close

    def _connect(self):
        def connect(connection):
            connection.connect()
            connection.default_channel.confirm_select()

        return Link(another(kombu.Connection(self._url)), connect)


class Celerys:
    """Celery's own events, which are dropped where the broker does not take them."""

    KEEPS = False

    def __init__(self, url, queue):
        self._link = _Dropping(Celery(broker=url, set_as_current=False), kombu.Connection.connect)
        self._producer = kombu.Producer(self._link.connection, routing_key=queue, auto_declare=False)
        self.close = self._link.end

    def send(self, body):
        self._producer.publish(body, content_type="application/data", content_encoding="binary")

    def turn(self):
        self._link.turn()


@pytest.fixture(params=[Copies, Events, Celerys], ids=lambda kind: kind.__name__.lower())
def connect(request):
    """A function that connects a user of a link to a broker, and publishes to a queue."""
    users: list[Any] = []

    def connect(url, queue):
        users.append(request.param(url, queue))
        return users[-1]

    yield connect
    for user in users:
        user.close()


def arrived(lab, queue, user):
    user.turn()
    return ready_counts(lab.connection, [queue])[queue] or 0


def sent_again(lab, queue, user):
    """Publish once more: what is written to a connection that ends can be lost."""
    user.send(b"again")
    return arrived(lab, queue, user) > 0


def is_lost(user):
    try:
        user.turn()
    except (OSError, amqp.AMQPError):
        return True
    return False


def in_time(act):
    """Call ``act``, which has to end although the broker does not."""
    began = time.monotonic()
    act()
    assert time.monotonic() - began < BUSY


@pytest.mark.brokers
def test_nothing_waits_in_an_alarm_and_all_goes_on_after_it(classic_lab, own_broker, connect):
    queue = classic_lab.queue()
    user = connect(classic_lab.url, queue)
    user.send(b"before")
    wait_for(lambda: arrived(classic_lab, queue, user) == 1)
    with alarm(own_broker):
        for _ in range(PIECES):
            in_time(lambda: user.send(PIECE))
            in_time(user.turn)
    if user.KEEPS:
        wait_for(lambda: arrived(classic_lab, queue, user) == 1 + PIECES)
    classic_lab.channel.queue_purge(queue)
    wait_for(lambda: sent_again(classic_lab, queue, user), "what is published after the alarm")


@pytest.mark.brokers
def test_a_close_in_an_alarm_takes_about_a_second(classic_lab, own_broker, connect):
    user = connect(classic_lab.url, classic_lab.queue())
    with alarm(own_broker):
        user.send(b"unread")
        in_time(user.close)


@pytest.mark.slow
def test_nothing_waits_for_a_peer_that_is_cut_off(classic_lab, proxy, connect):
    user = connect(elsewhere(classic_lab.url, proxy.port), classic_lab.queue())
    proxy.hold()
    for _ in range(PIECES):
        in_time(lambda: user.send(PIECE))
        in_time(user.turn)
    in_time(user.close)


def test_a_lost_connection_is_noticed_and_opened_again_where_messages_are_kept(classic_lab, proxy, connect):
    queue = classic_lab.queue()
    user = connect(elsewhere(classic_lab.url, proxy.port), queue)
    proxy.cut()
    if user.KEEPS:
        wait_for(lambda: sent_again(classic_lab, queue, user), "what is published on a new connection")
    else:
        wait_for(lambda: is_lost(user), "the error, upon which Celery connects again")
