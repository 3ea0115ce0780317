"""Helpers of the migration tests: an app with two queues, and messages with every kind of delay."""

import time
from typing import Any

import amqp
from celery import Celery
from kombu import Exchange, Queue
from kombu.transport.native_delayed_delivery import bind_queue_to_native_delayed_delivery_exchange as bind_celery_native
from kombu.transport.native_delayed_delivery import (
    declare_native_delayed_delivery_exchanges_and_queues as declare_celery_native,
)

from celery_rmq_delay import RetryableTask, install
from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.amqp.confirms import publisher_on
from celery_rmq_delay.amqp.route import Route
from celery_rmq_delay.app.state import AppState, state_of
from celery_rmq_delay.durations import parse_ms
from celery_rmq_delay.ladders import QueueType
from celery_rmq_delay.operations.celery_native_delay import level_names
from celery_rmq_delay.operations.migration.mover import WINDOW, Report
from celery_rmq_delay.operations.migration.service import Request, migrate
from tests.support.brokers.lab import Lab
from tests.support.brokers.lab_app import charge
from tests.support.waiting import wait_for

QUEUES = ("orders", "mails")


def queues(kind: QueueType, **arguments: Any) -> list[Queue]:
    """Return the app's queues: on a topic exchange, as Celery's native delayed delivery needs it."""
    shop = Exchange("shop", "topic")
    return [Queue(name, shop, f"{name}.key", queue_arguments={"x-queue-type": kind, **arguments}) for name in QUEUES]


def stock_app(url: str) -> Celery:
    """Return an app without this package; its calls with a delay use Celery's native delayed delivery."""
    app = Celery("stock", broker=url, set_as_current=False)
    app.conf.update(task_queues=queues("quorum"), task_default_queue="orders", task_default_exchange_type="topic")
    app.conf.broker_transport_options = {"confirm_publish": True}
    return app


def our_app(url: str, kind: QueueType, **settings: Any) -> Celery:
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update(task_queues=queues(kind), task_default_queue="orders", task_default_queue_type=kind)
    app.conf.rmq_delay = {"prefix": "p", "tiers": ["1h", "2h"], **settings}
    install(app)
    app.task(base=RetryableTask, name="shop.charge", shared=False)(charge)
    return app


class Movers:
    """An app on a vhost of its own."""

    def __init__(self, url: str, kind: QueueType, **settings: Any) -> None:
        self.lab = Lab(url, kind)
        self.url, self.kind = url, kind
        self.app = our_app(url, kind, **settings)
        self.delay: AppState = state_of(self.app)
        self.connection = self.lab.connection
        for queue in self.app.amqp.queues.values():
            queue(self.connection.channel()).declare()

    def close(self) -> None:
        self.lab.close()
        self.app.close()

    def again(self, **settings: Any) -> None:
        self.app = our_app(self.url, self.kind, **settings)
        self.delay = state_of(self.app)

    def migrate(self, source: str, to: str | None = None, *, window: int = WINDOW, **more: Any) -> Report:
        return migrate(self.delay, self.connection, Request(source, to, **more), window=window)

    # -- messages that wait ----------------------------------------------------------------------------------------

    def declare_celery_native(self, kind: QueueType = "quorum") -> None:
        declare_celery_native(self.connection, kind)
        for queue in self.app.amqp.queues.values():
            bind_celery_native(self.connection, queue)

    def call_celery_native(self, *countdowns: float, queue: str = "orders", **options: Any) -> dict[str, float]:
        """Call a task of an app without this package; return the due times by task id."""
        with stock_app(self.url) as app:
            found = {}
            for countdown in countdowns:
                sent = app.send_task("shop.charge", countdown=countdown, queue=queue, **options)
                found[sent.id] = time.time() + countdown
            return found

    def call(self, *countdowns: float, queue: str = "orders") -> list[str]:
        task = self.app.tasks["shop.charge"]
        return [task.apply_async(countdown=countdown, queue=queue).id for countdown in countdowns]

    def park(self, *task_ids: str, queue: str = "orders", **headers: Any) -> None:
        for task_id in task_ids:
            self.lab.publish(queue, f"body of {task_id}", headers={"id": task_id, "task": "shop.charge", **headers})
            self.lab.reject(self.lab.get(queue))

    def put(self, queue: str, body: bytes | str = b"", *, exchange: str = "", **properties: Any) -> None:
        message = amqp.Message(body, delivery_mode=2, **properties)
        publisher_on(self.lab.channel).send(message, Route(exchange, queue))

    # -- counts ----------------------------------------------------------------------------------------------------

    def count(self, *names: str) -> int:
        return sum(count or 0 for count in ready_counts(self.connection, names).values())

    def count_celery_native(self) -> int:
        return self.count(*level_names())

    def delay_queue(self, tier_index: int, tier: str) -> str:
        return self.delay.delay_queue("orders", tier_index, parse_ms(tier, "a tier"))

    def holds(self, count: int, *names: str) -> None:
        wait_for(lambda: self.count(*names) == count, f"{count} in {names[:3]}")

    def take(self, queue: str, count: int) -> list[amqp.Message]:
        return [self.lab.get(queue, ack=True) for _ in range(count)]

    def take_all(self, *queues: str) -> list[amqp.Message]:
        counts = ready_counts(self.connection, queues)
        return [message for queue, count in counts.items() for message in self.take(queue, count or 0)]
