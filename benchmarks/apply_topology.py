"""Measure how long a worker takes at its start to create, and to check, the ladders of many queues.

    python -m benchmarks.apply_topology [--broker-url URL] [--rabbitmq 4.3] [--queues 100] [--tiers 5]

Starts a private RabbitMQ unless you set a URL. Prints seconds for all queues, and the time per queue.
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from contextlib import ExitStack
from typing import Any

import kombu

from celery_rmq_delay.amqp.capabilities import broker_version, capabilities
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.names import Names
from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.topology.common import origin_arguments
from celery_rmq_delay.topology.ladder import LadderPlan
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers.trees import choose

ROUNDS = 3


def plans_of(names: Names, queue_type: Any, queues: int, tiers: int, reason_routing: bool) -> list[LadderPlan]:
    """Return one plan per queue; each has one task with its own tiers."""
    ladder = Ladder(tuple(10_000 * 3**tier_index for tier_index in range(tiers)))
    tasks = {"shop.ping": Ladder((1_000, 2_000)), "shop.charge": None}
    exhausted = f"{names.prefix}.exhausted"
    return [
        LadderPlan(names, f"{names.prefix}-{number}", queue_type, exhausted, ladder, tasks, reason_routing)
        for number in range(queues)
    ]


def timed(connection: kombu.Connection, plans: list[LadderPlan]) -> float:
    """Apply all plans and return the seconds."""
    begun = time.perf_counter()
    for plan in plans:
        apply_plan(connection, plan, quick=True)
    return time.perf_counter() - begun


def measure(connection: kombu.Connection, queue_type: Any, queues: int, tiers: int) -> tuple[float, float]:
    """Return the seconds to create the ladders of all queues, and to check existing ones (median)."""
    names = Names(f"b{uuid.uuid4().hex[:8]}")
    plans = plans_of(names, queue_type, queues, tiers, capabilities(connection).reports_death_reason)
    channel = connection.channel()
    try:
        for plan in plans:
            arguments = origin_arguments(names, plan.queue, queue_type)
            channel.queue_declare(plan.queue, durable=True, auto_delete=False, arguments=arguments)
        return timed(connection, plans), statistics.median(timed(connection, plans) for _ in range(ROUNDS))
    finally:
        for plan in plans:
            objects = plan.objects()
            for queue in (*objects.queues, plan.record_queue(), plan.exhausted_queue()):
                channel.queue_delete(queue.name)
            channel.queue_delete(plan.queue)
            for exchange in objects.exchanges:
                channel.exchange_delete(exchange.name)
        channel.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker-url")
    parser.add_argument("--rabbitmq", default="system")
    parser.add_argument("--queues", type=int, default=100)
    parser.add_argument("--tiers", type=int, default=5)
    options = parser.parse_args()
    with ExitStack() as stack:
        url = options.broker_url
        if url is None:
            found = choose(options.rabbitmq)
            url = stack.enter_context(PrivateBroker(found.server, found.root)).url
        connection = stack.enter_context(kombu.Connection(url))
        connection.connect()
        version = ".".join(map(str, broker_version(connection)))
        print(f"RabbitMQ {version}, {options.queues} queues x {options.tiers} tiers, one connection")
        print(f"{'type':10}{'created s':>12}{'found s':>12}{'found, ms a queue':>20}")
        for queue_type in ("classic", "quorum"):
            created, again = measure(connection, queue_type, options.queues, options.tiers)
            print(f"{queue_type:10}{created:12.2f}{again:12.2f}{again / options.queues * 1000:20.1f}")


if __name__ == "__main__":
    main()
