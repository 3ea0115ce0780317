"""``python -m benchmarks.contenders.delayed``: a publisher that takes orders, one JSON object per line of its input.

It answers each with a line. Every message is created and routed by the contender's `apply_async`; to park 100,000 of
them, the messages of some calls are copied under other ids, as single calls would take minutes.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import amqp
from kombu.transport.native_delayed_delivery import (
    MAX_LEVEL,
    bind_queue_to_native_delayed_delivery_exchange,
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)

from benchmarks.contenders import shop
from benchmarks.contenders.delayed_celery_app import CELERY_NATIVE, app, arrive
from benchmarks.contenders.pace import Pace
from benchmarks.copies import Copies, Template


def prepare() -> dict[str, Any]:
    """Declare the objects of Celery's native delays, which its worker would declare: without them delays are lost."""
    with app.connection_for_write() as connection:
        queue = app.amqp.queues["work"]
        queue(connection.default_channel).declare()
        if CELERY_NATIVE:
            kind = app.conf.broker_native_delayed_delivery_queue_type
            declare_native_delayed_delivery_exchanges_and_queues(connection, kind)
            bind_queue_to_native_delayed_delivery_exchange(connection, queue)
    return {}


def now(number: int) -> dict[str, Any]:
    """Publish one task without a delay."""
    arrive.apply_async((number, shop.ORDER))
    return {}


def calls(count: int, seed: int, low: int, high: int) -> dict[str, Any]:
    """Call the task with delays between ``low`` and ``high`` seconds; return the time and CPU that it took."""
    delays = random.Random(seed).choices(range(low, high + 1), k=count)
    began, cpu = time.perf_counter(), time.process_time()
    for delay in delays:
        arrive.apply_async((delay, shop.ORDER), countdown=delay)
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def probes(count: int, seed: int, low: float, high: float, per_second: float) -> dict[str, Any]:
    """Call the task at a steady rate with random delays; return the time of each call (monotonic) and its delay."""
    chosen, times = random.Random(seed), []
    for number in Pace(count, per_second):
        delay = round(chosen.uniform(low, high), 3)
        times.append((time.monotonic(), delay))
        arrive.apply_async((number, shop.ORDER), countdown=delay)
    return {"calls": times}


def park(count: int, low: int, high: int, kinds: int) -> dict[str, Any]:
    """Park ``count`` messages: of ``kinds`` calls with delays from ``low`` to ``high`` seconds, and copies of them."""
    found = [_published(delay) for delay in range(low, high, max(1, (high - low) // kinds))]
    with Copies(shop.BROKER_URL) as copies:
        for number in range(count - len(found)):
            copies.publish(found[number % len(found)])
    return {}


def due_together(count: int, seconds: int) -> dict[str, Any]:
    """Publish ``count`` messages that are due within a second, ``seconds`` from now; return when (monotonic)."""
    found = [_published(delay) for delay in range(1, seconds + 1)]
    due = time.monotonic() + seconds
    left = float(seconds)
    with Copies(shop.BROKER_URL) as copies:
        for _ in range(count - len(found)):
            left = due - time.monotonic()
            copies.publish(found[max(1, min(seconds, math.ceil(left))) - 1])
    return {"due": due, "left": left}


def _published(delay: int) -> Template:
    with _watched() as sent:
        arrive.apply_async((delay, shop.ORDER), countdown=delay)
    message, exchange, routing_key = sent[-1]
    # Routing 100,000 messages through the exchanges of all higher levels would take minutes.
    return Template(message, first_level(routing_key) if CELERY_NATIVE else exchange, routing_key)


def first_level(routing_key: str) -> str:
    """Return the exchange of Celery's first level at which a message waits, by its key ``0.0.1.0...``."""
    return level_name(MAX_LEVEL - routing_key.split(".").index("1"))


@contextmanager
def _watched() -> Iterator[list[Template]]:
    """Record the messages published in the block."""
    original: Any = amqp.Channel._basic_publish
    sent: list[Template] = []

    def note(
        self: amqp.Channel, message: amqp.Message, exchange: str, routing_key: str, *args: Any, **more: Any
    ) -> Any:
        sent.append(Template(message, exchange, routing_key))
        return original(self, message, exchange, routing_key, *args, **more)

    amqp.Channel._basic_publish = note
    try:
        yield sent
    finally:
        amqp.Channel._basic_publish = original


ORDERS: dict[str, Callable[..., dict[str, Any]]] = {
    order.__name__: order for order in (prepare, now, calls, probes, park, due_together)
}


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(ORDERS[order.pop("do")](**order)), flush=True)


if __name__ == "__main__":
    main()
