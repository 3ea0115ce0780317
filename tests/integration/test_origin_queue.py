"""The first process that declares a queue sets its dead-letter exchange; existing queues are not changed."""

import logging

import kombu.pools
import pytest
from celery import Celery
from kombu import Queue

from celery_rmq_delay import install
from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.app.queues import OriginQueue
from celery_rmq_delay.app.state import AppState
from celery_rmq_delay.exceptions import TopologyError
from celery_rmq_delay.topology.common import origin_arguments
from tests.support.waiting import wait_for

pytestmark = pytest.mark.brokers


class Shop:
    """An app with one queue on the lab's broker."""

    def __init__(self, lab, **settings):
        self.lab, self.queue = lab, f"{lab.names.prefix}-shop"
        self.app = Celery("shop", broker=lab.url, set_as_current=False)
        arguments = {"x-queue-type": "quorum"} if lab.queue_type == "quorum" else None
        self.app.conf.update(
            rmq_delay={"prefix": lab.names.prefix, "tiers": [0.02, 0.03], **settings},
            task_queues=[Queue(self.queue, queue_arguments=arguments)],
            task_default_queue=self.queue,
            broker_connection_retry_on_startup=False,
        )
        self.delay: AppState = install(self.app)
        lab.forget(self.queue)

    def send(self, name="t"):
        self.app.send_task(name)

    def consume(self):
        """Declare the queue as a worker's consumer does."""
        with self.app.connection_for_read() as connection:
            self.app.amqp.TaskConsumer(connection.default_channel)

    def messages(self):
        return ready_counts(self.lab.connection, [self.queue])[self.queue]

    def close(self):
        self.app.close()
        kombu.pools.reset()  # kombu shares them between apps on one URL


@pytest.fixture
def shops(lab):
    made: list[Shop] = []

    def make(**settings):
        made.append(Shop(lab, **settings))
        return made[-1]

    yield make
    for shop in made:
        shop.close()


def has_our_exchange(lab, queue):
    """Declare the queue with our arguments: the broker refuses them if they differ."""
    channel = lab.connection.channel()
    try:
        arguments = origin_arguments(lab.names, queue, lab.queue_type)
        channel.queue_declare(queue, durable=True, auto_delete=False, arguments=arguments)
    except Exception:  # noqa: BLE001 - any refusal
        return False
    channel.close()
    return True


def test_a_publisher_declares_the_queue_as_a_worker_does(lab, shops):
    publisher, worker = shops(), shops()
    publisher.send()
    assert has_our_exchange(lab, publisher.queue)
    worker.consume()
    wait_for(lambda: worker.messages() == 1, "the message")
    assert worker.delay.differing == set()


def test_a_worker_declares_the_queue_as_a_publisher_does(lab, shops):
    publisher, worker = shops(), shops()
    worker.consume()
    publisher.send()
    assert has_our_exchange(lab, publisher.queue)
    assert publisher.delay.differing == set()


def test_rejected_messages_of_an_app_advance_once_the_ladder_is_applied(lab, shops):
    shop = shops()
    shop.consume()
    plan = shop.delay.plan(shop.queue, reason_routing=lab.reports_death_reason)
    lab.applied(lab.plan(plan.ladder, dict(plan.tasks), queue=shop.queue))
    shop.send("unknown.task")
    assert len(lab.advance(lab.plan(plan.ladder, queue=shop.queue))) == 4


@pytest.mark.parametrize("side", ["publisher", "consumer"])
def test_a_queue_that_exists_is_used_as_it_is_and_logged_once(lab, shops, side, caplog):
    shop = shops()
    lab.queue(shop.queue)
    with caplog.at_level(logging.WARNING, "celery_rmq_delay"):
        for _ in range(3):
            shop.send() if side == "publisher" else shop.consume()
    assert shop.delay.differing == {shop.queue}
    warnings = [record.getMessage() for record in caplog.records if record.name.startswith("celery_rmq_delay")]
    assert len(warnings) == 1
    assert shop.queue in warnings[0]
    assert "inequivalent arg" in warnings[0]
    assert lab.names.dlx(shop.queue) in warnings[0]
    if side == "publisher":
        wait_for(lambda: shop.messages() == 3, "three messages")


@pytest.mark.parametrize("side", ["publisher", "consumer"])
def test_a_queue_that_exists_is_an_error_where_the_settings_are_strict(lab, shops, side):
    shop = shops(strict=True)
    lab.queue(shop.queue)
    adopt = rf"run `celery -A shop rmq-delay adopt --queue {shop.queue}`\. Do not delete the queue while "
    found = rf"The queue '{shop.queue}' exists with other arguments .* instead, {adopt}"
    with pytest.raises(TopologyError, match=found) as caught:
        shop.send() if side == "publisher" else shop.consume()
    assert "delete-queue" not in str(caught.value)  # an old process would declare it without our arguments
    assert shop.delay.differing == set()


@pytest.mark.parametrize("strict", [False, True])
def test_a_queue_that_the_app_does_not_declare_is_compared_and_never_made(lab, shops, strict):
    shop = shops(strict=strict)
    queue = OriginQueue.of(Queue(shop.queue, no_declare=True), shop.delay)
    queue.compare(lab.connection)
    assert ready_counts(lab.connection, [shop.queue]) == {shop.queue: None}
    lab.queue(shop.queue)
    if strict:
        with pytest.raises(TopologyError, match=rf"The queue '{shop.queue}' exists with other arguments"):
            queue.compare(lab.connection)
    else:
        queue.compare(lab.connection)
        assert shop.delay.differing == {shop.queue}


def test_a_queue_that_exists_with_any_arguments_is_used(lab, shops):
    shop = shops()
    lab.queue(shop.queue, **{"x-max-length": 100, "x-dead-letter-exchange": "theirs"})
    shop.send()
    assert shop.delay.differing == {shop.queue}
    wait_for(lambda: shop.messages() == 1, "the message")


def test_the_worker_is_notified_of_a_queue_that_is_created_while_the_app_runs(lab, shops):
    shop = shops()
    declared: list[str] = []
    shop.delay.on_declared = declared.append
    name = f"{lab.names.prefix}-new"
    lab.forget(name)
    shop.app.send_task("t", queue=name)
    assert isinstance(shop.app.amqp.queues[name], OriginQueue)
    assert name in declared
