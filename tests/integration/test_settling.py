"""What a thread of the pool settles while the worker's main process connects anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery
from kombu import Queue
from kombu.asynchronous import Hub
from kombu.message import Message

import celery_rmq_delay
from celery_rmq_delay.broker import copy_of
from celery_rmq_delay.retry.delivery import Delivery, Path
from celery_rmq_delay.settling import Settling
from celery_rmq_delay.topology.exact import Route
from tests.support.brokers.lab import Lab


class Consumer:
    """As much of Celery's consumer as settling uses; its loop is `run`."""

    hostname = "w@test"

    def __init__(self, lab: Lab, app: Celery) -> None:
        self.lab, self.app = lab, app
        self.hub = Hub()
        self.timer = self.hub.timer
        self.connection: Any = lab.connect()
        self.connection_errors = self.connection.connection_errors
        self.due: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.due.append(lambda: callback(*args))

    def lose(self) -> None:
        """Lose the connection, as Celery does."""
        connection, self.connection = self.connection, None
        connection.collect()

    def run(self) -> None:
        while self.due:
            self.due.pop(0)()


@pytest.fixture
def side(classic_lab: Lab) -> Iterator[Settling]:
    """What settles for a worker that is connected."""
    app = Celery("settling", broker=classic_lab.url, set_as_current=False)
    app.conf.rmq_delay = {"prefix": classic_lab.names.prefix}
    side = Settling(Consumer(classic_lab, app), celery_rmq_delay.install(app))
    connect(side)
    yield side
    side.close()
    side.consumer.hub.close()
    app.close()


def connect(side: Settling) -> None:
    side.choose(side.consumer.connection)
    side.open(side.consumer.connection)


def take(side: Settling, queue: str) -> Message:
    """Publish a message and take it on the worker's connection."""
    side.consumer.lab.publish(queue)
    message: Any = Queue(queue, no_declare=True)(side.consumer.connection.channel()).get()
    message.raw_headers = message.headers
    return message  # type: ignore[no-any-return]


def in_thread(act: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(act).result()


def connect_anew(side: Settling) -> None:
    side.consumer.connection = side.consumer.lab.connect()
    connect(side)
    side.consumer.run()


@pytest.mark.brokers
def test_what_a_thread_wanted_to_publish_before_a_new_connection_is_left_to_the_broker(
    classic_lab: Lab, side: Settling
) -> None:
    queue = classic_lab.queue()
    message = take(side, queue)
    in_thread(lambda: side.publish(message, copy_of(message, {}), Route("", queue)))
    side.consumer.lose()

    connect_anew(side)

    assert classic_lab.get(queue, ack=True).delivery_info["redelivered"]
    assert classic_lab.channel.basic_get(queue) is None, "no copy beside it"


def test_a_thread_may_park_a_message_while_there_is_no_connection(classic_lab: Lab, side: Settling) -> None:
    queue = classic_lab.queue()
    message = take(side, queue)
    side.consumer.lose()
    task: Any = None  # an exact delay asks for none
    in_thread(lambda: side.park(message, Delivery(queue, 0, None, Path.COPY), task, 0, 1, delay_ms=500))

    connect_anew(side)

    assert classic_lab.get(queue, ack=True).delivery_info["redelivered"]


def test_what_a_thread_publishes_waits_for_the_event_loop(classic_lab: Lab, side: Settling) -> None:
    queue, target = classic_lab.queue(), classic_lab.queue()
    message = take(side, queue)

    in_thread(lambda: side.publish(message, copy_of(message, {}), Route("", target)))

    assert classic_lab.channel.basic_get(target) is None
    side.consumer.run()
    assert classic_lab.get(target, ack=True)
