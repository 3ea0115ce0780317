"""dramatiq with its own middleware and queues, configured as in its guide.

Its delay: the failed message is published, unconfirmed, to ``work.DQ``; a worker consumes it (prefetch 1,000 per
thread) and keeps it in memory, unacknowledged, until it is due; then it publishes it to ``work`` and acks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from benchmarks.contenders import shop

logging.basicConfig(level=shop.LOG_LEVEL)
logging.getLogger("pika").setLevel(logging.CRITICAL)
if shop.MODE == "retry-unlogged":
    logging.getLogger("dramatiq").setLevel(logging.CRITICAL)

broker = RabbitmqBroker(url=shop.BROKER_URL)
dramatiq.set_broker(broker)


# Its backoff is random, between once and twice `min_backoff`. If the delay must be known, the task requests it.
@dramatiq.actor(queue_name="work", min_backoff=shop.DELAY * 1000)
def pay(number: int, order: dict[str, Any]) -> None:
    if shop.WITH_TIMES or shop.FAILURES:
        try:
            shop.fail(number, order)
        except shop.GatewayError as error:
            raise dramatiq.Retry(str(error), delay=shop.DELAY * 1000) from error
        return
    shop.fail(number, order)


def enqueue(numbers: Iterable[int]) -> None:
    """Publish tasks."""
    for number in numbers:
        pay.send(number, shop.ORDER)
    broker.close()
