"""Messages settled by a thread of the pool while the worker's main process reconnects."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import kombu
import pytest
from amqp.exceptions import RecoverableConnectionError
from celery import Celery
from kombu import Queue
from kombu.asynchronous import Hub
from kombu.message import Message

import celery_rmq_delay
from celery_rmq_delay import headers as h
from celery_rmq_delay.retry.decision import Action, Arrival
from celery_rmq_delay.retry.delivery import Delivery, RetryPath
from celery_rmq_delay.worker.bootstep import _loop
from celery_rmq_delay.worker.copies import Failure
from celery_rmq_delay.worker.flight import InFlight
from celery_rmq_delay.worker.settle import Settling
from celery_rmq_delay.worker.shutdown import disconnect
from tests.support.waiting import SECONDS, wait_for


class Consumer:
    """The part of Celery's consumer that settling uses; its loop is `run`."""

    hostname = "w@test"

    def __init__(self, lab, app):
        self.lab, self.app = lab, app
        self.hub = Hub()
        self.timer = self.hub.timer
        self.connection: Any = lab.connect()
        self.connection_errors = self.connection.connection_errors
        self.due: list[Callable[[], object]] = []

    def call_soon(self, callback, *args):
        self.due.append(lambda: callback(*args))

    def lose(self):
        """Lose the connection, as Celery does."""
        connection, self.connection = self.connection, None
        connection.collect()

    def run(self):
        while self.due:
            self.due.pop(0)()


@pytest.fixture
def side(classic_lab):
    """The settling side of a connected worker."""
    with settling(classic_lab) as side:
        yield side


@contextmanager
def settling(lab):
    app = Celery("settling", broker=lab.url, set_as_current=False)
    app.conf.rmq_delay = {"prefix": lab.names.prefix, "queue_type": lab.queue_type}
    side = Settling(Consumer(lab, app), celery_rmq_delay.install(app), bool)
    connect(side)
    yield side
    side.close()
    side.consumer.hub.close()
    app.close()


def connect(side):
    side.copies.choose(side.consumer.connection)
    side.open(side.consumer.connection)


def take(side, queue, headers=None):
    """Publish a message and take it on the worker's connection."""
    side.consumer.lab.publish(queue, headers=headers)
    message: Any = Queue(queue, no_declare=True)(side.consumer.connection.channel()).get()
    flight = InFlight(message, queue)
    delivery = Delivery(queue, 0, None, RetryPath.COPY)
    flight.manage(side, Arrival(Action.RUN, delivery, 0, 0, redelivered=False, keeps_eta=False), "a", "t")
    return flight


def in_thread(act):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(act).result()


def reconnect(side):
    side.consumer.connection = side.consumer.lab.connect()
    connect(side)
    side.consumer.run()


@pytest.mark.brokers
def test_copies_of_a_thread_from_before_a_new_connection_are_left_to_the_broker(classic_lab, side):
    queue = classic_lab.queue()
    flight = take(side, queue)
    in_thread(lambda: side.copy_to(queue, flight, {}, again=False))
    side.consumer.lose()

    reconnect(side)

    assert classic_lab.get(queue, ack=True).delivery_info["redelivered"]
    assert classic_lab.channel.basic_get(queue) is None, "no copy beside it"


def test_a_thread_may_park_a_message_while_there_is_no_connection(classic_lab, side):
    queue = classic_lab.queue()
    flight = take(side, queue)
    side.consumer.lose()
    task: Any = None  # an exact delay asks for none
    in_thread(lambda: side.publish(flight, partial(side.copies.parked, flight, task, 1, delay_ms=500)))

    reconnect(side)

    assert classic_lab.get(queue, ack=True).delivery_info["redelivered"]


def test_a_quarantined_task_whose_attempt_has_ended_is_parked_without_its_kills(classic_lab, side, monkeypatch):
    queue = classic_lab.queue()
    flight = take(side, queue, headers={h.CRASHES: 2, "tenant": "north"})
    copies: list[Any] = []
    monkeypatch.setattr(side, "publish", lambda _flight, make, **_: copies.append(make().message))
    task: Any = None  # an exact delay asks for none
    side.publish(flight, partial(side.copies.parked, flight, task, 1, delay_ms=500))

    [copy] = copies
    assert h.CRASHES not in copy.headers
    assert copy.headers["tenant"] == "north"


def test_a_read_of_the_lost_connection_does_not_end_the_next_one(side):
    """RabbitMQ 3.10, a worker with the pool solo: its loop has several reads scheduled when one meets the end."""
    hub, lost = side.consumer.hub, side.consumer.connection

    def ends():
        hub.call_soon(lost.transport._make_reader(lost.connection), hub)
        raise RecoverableConnectionError("lost")

    def goes_on():
        assert len(hub._ready) == 1
        next(hub.create_loop())

    with pytest.raises(RecoverableConnectionError, match="lost"):
        _loop(ends, side)  # type: ignore[arg-type]
    side.consumer.lose()
    hub.call_soon(hub.timer.clear)  # others stay
    _loop(goes_on, side)  # type: ignore[arg-type]


def test_copies_published_by_a_thread_wait_for_the_event_loop(classic_lab, side):
    queue, target = classic_lab.queue(), classic_lab.queue()
    flight = take(side, queue)

    in_thread(lambda: side.copy_to(target, flight, {}, again=False))

    assert classic_lab.channel.basic_get(target) is None
    side.consumer.run()
    assert classic_lab.get(target, ack=True)


def test_messages_that_wait_for_a_full_queue_are_logged_less_and_less_often(classic_lab, side, caplog):
    full = classic_lab.queue(**{"x-max-length": 0, "x-overflow": "reject-publish"})
    queue = classic_lab.queue()
    flights = [take(side, queue) for _ in range(5)]

    for _ in range(20):
        for flight in flights:
            side.copy_to(full, flight, {})
        side.publisher.drain(SECONDS)
    logged = [record for record in caplog.records if "waits in this worker for another try" in record.getMessage()]
    assert 1 <= len(logged) < 10, "of 100 refusals"


def test_a_copy_refused_and_dead_lettered_leaves_its_message_and_is_tried_less_often(classic_lab, side, monkeypatch):
    dead, queue = classic_lab.queue(), classic_lab.queue()
    limits = {"x-max-length": 0, "x-overflow": "reject-publish-dlx"}
    full = classic_lab.queue(**limits, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    side.delay.app.amqp.queues.add(Queue(full, queue_arguments=limits))
    flight = take(side, queue)
    pauses: list[float] = []
    monkeypatch.setattr(side.consumer.timer, "call_after", lambda pause, *_: pauses.append(pause))

    for _ in range(3):
        side.copy_to(full, flight, {})
        side.publisher.drain(SECONDS)

    assert sorted(set(pauses).intersection({1.0, 2.0, 4.0})) == [1.0, 2.0, 4.0]
    assert not flight.message.acknowledged
    assert classic_lab.get(dead, ack=True)


def test_an_exhausted_message_with_headers_that_leave_no_room_for_ours_is_rejected(classic_lab, side):
    queue, dead = classic_lab.queue(), classic_lab.queue()
    classic_lab.channel.queue_delete(queue)
    classic_lab.queue(queue, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    side.applied.add(queue)
    classic_lab.publish(queue, headers={"id": "a", "task": "t", "x": "y" * (131_072 - 300)})
    message: Any = Queue(queue, no_declare=True)(side.consumer.connection.channel()).get()

    side.exhaust(InFlight(message, queue), Failure("retries_used", ValueError("no"), "t"))
    side.consumer.run()

    assert classic_lab.get(dead, ack=True).headers["id"] == "a"


@pytest.mark.brokers
def test_a_worker_that_stops_waits_until_quorum_queues_have_its_acks(quorum_lab):
    queue = quorum_lab.queue()
    for _ in range(8):  # without waiting, some rounds leave messages
        with settling(quorum_lab) as side:
            side.applied.add(queue)
            side.consumer.task_consumer = taking = take_all(quorum_lab, side.consumer.connection, queue, 64)
            for message in taking.taken:
                message.ack()
            side.delivered = 64
            disconnect(side)
            side.consumer.connection.close()
        assert quorum_lab.channel.basic_get(queue) is None


@pytest.mark.brokers
def test_a_quorum_queue_forgets_acks_beyond_the_32nd_when_their_channel_closes_at_once(quorum_lab):
    """The channel sends a queue 32 commands before it gets answers: ``SOFT_LIMIT`` of `rabbit_fifo_client`."""
    queue = quorum_lab.queue()

    def is_forgotten():
        connection = quorum_lab.connect()
        for message in take_all(quorum_lab, connection, queue, 64).taken:
            message.ack()
        connection.close()
        return len(list(iter(lambda: quorum_lab.channel.basic_get(queue, no_ack=True), None))) > 0

    wait_for(is_forgotten, "acks that are forgotten")  # in about two of three rounds


def take_all(lab, connection, queue, count):
    """Publish so many messages; return a cancelled consumer that has them as ``taken``."""
    for _ in range(count):
        lab.publish(queue)
    channel = connection.channel()
    channel.basic_qos(0, count, False)
    taken: list[Message] = []
    consumer: Any = kombu.Consumer(
        channel, [Queue(queue, no_declare=True)], on_message=taken.append, auto_declare=False
    )
    consumer.consume()
    while len(taken) < count:
        connection.drain_events(timeout=SECONDS)
    consumer.cancel()
    consumer.taken = taken
    return consumer
