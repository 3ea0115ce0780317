"""Measure the memory and disk that RabbitMQ needs for parked messages, empty queues, bindings and exchanges, in bytes.

    python -m benchmarks broker_memory                               # the machine's RabbitMQ
    python -m benchmarks broker_memory --rabbitmq 4.3 --json memory.json
    python -m benchmarks broker_memory --messages 20000 --sizes 1KiB
    python -m benchmarks broker_memory --rabbitmq 4.3 --cluster      # per replica of a quorum queue

Every row has a fresh node. Memory is `erlang:memory(total)` after a garbage collection of every process, minus the same
before; `at once` is before any collection. The row of a quorum queue is measured twice: while its messages are in the
write-ahead log, and after the log was flushed to segment files. Disk is the space of the files in the data directory.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import amqp
import kombu
from amqp.serialization import dumps

from benchmarks.brokers import COLLECTED_MEMORY, MEMORY, data_folder, occupied, patiently
from benchmarks.memory_report import EXCHANGES, TYPES, Row, constants, print_report, print_rows
from benchmarks.output import progress
from celery_rmq_delay.amqp.capabilities import capabilities
from celery_rmq_delay.ladders import Ladder, QueueType
from celery_rmq_delay.names import Names
from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.topology.common import origin_arguments
from celery_rmq_delay.topology.ladder import LadderPlan
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers.trees import choose
from tests.support.servers.cluster import PrivateCluster

HOUR = 3_600_000
UNCONFIRMED = 1_000


class Node:
    """A fresh node with its memory and disk usage."""

    def __init__(self, broker: PrivateBroker) -> None:
        self.broker = broker
        self.connection = kombu.Connection(broker.url)
        self.channel: amqp.Channel = self.connection.channel()
        self._data = data_folder(broker)

    def plan(self, queue_type: QueueType, tiers: Sequence[int] = (HOUR,), queue: str = "payments") -> LadderPlan:
        reason_routing = capabilities(self.connection).reports_death_reason
        ladder = Ladder(tuple(tiers))
        return LadderPlan(Names("rmq_delay"), queue, queue_type, "rmq_delay.exhausted", ladder, {}, reason_routing)

    def declare(self, name: str, arguments: dict[str, Any]) -> None:
        self.channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)

    def memory(self, *, collected: bool = True) -> int:
        return int(patiently(self.broker.evaluate, COLLECTED_MEMORY if collected else MEMORY))

    def rss(self) -> int:
        status = Path(f"/proc/{self.broker.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))

    def disk(self) -> int:
        return occupied(self._data)

    def flush_wal(self) -> None:
        """Flush the write-ahead log to segment files."""
        patiently(self.broker.evaluate, "ra_log_wal:force_roll_over(ra_log_wal)")
        self.settle()

    def settle(self, seconds: float = 30) -> None:
        """Wait until memory and disk have not moved by more than 1 % for two seconds."""
        deadline, before = time.monotonic() + seconds, (0, 0)
        while time.monotonic() < deadline:
            now = self.memory(), self.disk()
            if all(abs(new - old) <= new / 100 for new, old in zip(now, before, strict=True)):
                return
            before = now
            time.sleep(2)

    def publish(self, queue: str, count: int, size: int) -> None:
        """Publish ``count`` messages of ``size`` bytes, with confirms."""
        channel = self.connection.channel()
        channel.confirm_select()
        confirmed = 0

        def on_ack(tag: int, multiple: bool) -> None:
            nonlocal confirmed
            confirmed = max(confirmed, tag) if multiple else confirmed + 1

        channel.events["basic_ack"].add(on_ack)
        message = amqp.Message(b"x" * size, delivery_mode=2)
        for number in range(1, count + 1):
            # The unwrapped method: `basic_publish` of a confirming channel waits for each confirm.
            channel._basic_publish(message, "", queue)
            while number - confirmed > UNCONFIRMED:
                self.connection.drain_events(timeout=60)
        while channel.is_open and self._ready(queue) < count:
            time.sleep(0.2)
        channel.close()

    def _ready(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).message_count)


@contextmanager
def fresh(rabbitmq: str) -> Iterator[Node]:
    found = choose(rabbitmq)
    with PrivateBroker(found.server, found.root) as broker:
        node = Node(broker)
        with node.connection:
            yield node


def delta(node: Node, what: str, kind: str, count: int, act: Callable[[], None], *, size: int = 0) -> Iterator[Row]:
    """Call ``act``, and yield the bytes per object; for quorum queues again after the write-ahead log was flushed."""
    node.settle()
    memory, rss, disk = node.memory(), node.rss(), node.disk()

    def row(suffix: str = "") -> Row:
        at_once = node.memory(collected=False)
        node.settle()
        found = (at_once - memory, node.memory() - memory, node.rss() - rss, node.disk() - disk)
        made = Row(what + suffix, kind, size, count, *(value / count for value in found))
        progress.print(f"{made.what}, {kind}, {size} B: {made.memory:,.0f} B memory, {made.disk:,.0f} B disk")
        return made

    act()
    yield row()
    if kind == "quorum":
        node.flush_wal()
        yield row(", flushed")


def messages(rabbitmq: str, count: int, sizes: Sequence[int]) -> Iterator[Row]:
    for kind in TYPES:
        for size in sizes:
            with fresh(rabbitmq) as node:
                queue = node.plan(kind).delay_queue(1, HOUR)
                node.declare(queue.name, queue.arguments)

                def park(node: Node = node, name: str = queue.name, size: int = size) -> None:
                    node.publish(name, count, size)

                yield from delta(node, "parked message", kind, count, park, size=size)


def queues(rabbitmq: str, count: int) -> Iterator[Row]:
    for kind in TYPES:
        with fresh(rabbitmq) as node:
            plan = node.plan(kind)

            def declare(node: Node = node, plan: LadderPlan = plan) -> None:
                for number in range(count):
                    node.declare(f"payments-{number}.retry.1.1h", plan.delay_queue(1, HOUR).arguments)

            yield from delta(node, "empty delay queue", kind, count, declare)


def routes(rabbitmq: str, count: int) -> Iterator[Row]:
    for kind in EXCHANGES:
        with fresh(rabbitmq) as node:
            channel = node.channel
            channel.exchange_declare("rmq_delay.return", kind, durable=True, auto_delete=False)
            node.declare("payments", {})

            def bind(channel: amqp.Channel = channel) -> None:
                for number in range(count):
                    channel.queue_bind("payments", "rmq_delay.return", f"payments@{number}", nowait=number % 500 != 0)

            yield from delta(node, "binding", kind, count, bind)
    with fresh(rabbitmq) as node:

        def declare(channel: amqp.Channel = node.channel) -> None:
            for number in range(count // 10):
                channel.exchange_declare(f"rmq_delay.payments-{number}.dlx", "headers", durable=True, auto_delete=False)

        yield from delta(node, "exchange", "headers", count // 10, declare)


def replicas(rabbitmq: str, count: int, size: int, queues: int) -> Iterator[Row]:
    """Yield the bytes per replica for each node of a cluster of three; logs are flushed."""
    found = choose(rabbitmq)
    with PrivateCluster(3, found.server, found.root) as cluster, ExitStack() as stack:
        nodes = [Node(broker) for broker in cluster.nodes]
        for node in nodes:
            stack.enter_context(node.connection)
        first = nodes[0]
        queue = first.plan("quorum").delay_queue(1, HOUR)

        def declare() -> None:
            for number in range(queues):
                first.declare(f"payments-{number}.retry.1.1h", queue.arguments)

        yield from _on_each(nodes, "empty delay queue", queues, declare)
        first.declare(queue.name, queue.arguments)
        yield from _on_each(nodes, "parked message", count, lambda: first.publish(queue.name, count, size), size=size)


def _on_each(nodes: Sequence[Node], what: str, count: int, act: Callable[[], None], *, size: int = 0) -> Iterator[Row]:
    def occupied() -> list[tuple[int, int, int, int]]:
        for node in nodes:
            node.flush_wal()
        return [(node.memory(collected=False), node.memory(), node.rss(), node.disk()) for node in nodes]

    before = occupied()
    act()
    for number, (old, new) in enumerate(zip(before, occupied(), strict=True), 1):
        each = ((late - early) / count for early, late in zip(old, new, strict=True))
        yield Row(what, f"node {number}", size, count, *each)


def death_headers(rabbitmq: str) -> list[int]:
    """Return the header bytes that each tier adds to a message: tier 1, tier 2, ..."""
    found = []
    with fresh(rabbitmq) as node:
        plan = node.plan("classic", tiers=(200, 200, 200, 200))
        node.declare(plan.queue, origin_arguments(plan.names, plan.queue, "classic"))
        apply_plan(node.connection, plan)
        channel = node.connection.channel()
        channel.basic_publish(amqp.Message(b"x", application_headers={"task": "a"}, delivery_mode=2), "", plan.queue)
        bare = len(dumps("F", [{"task": "a"}]))
        while (message := _next(channel, plan)).delivery_info["exchange"] == "" or len(found) < 4:
            if "x-death" in message.headers:
                found.append(len(dumps("F", [message.headers])) - bare)
            channel.basic_reject(message.delivery_tag, requeue=False)
    return found


def _next(channel: amqp.Channel, plan: LadderPlan) -> amqp.Message:
    for _ in range(300):
        for queue in (plan.queue, plan.exhausted):
            if message := channel.basic_get(queue):
                return message
        time.sleep(0.05)
    raise TimeoutError(f"No message came back to {plan.queue} within 15 s.")


def parse_size(text: str) -> int:
    number, unit = (text[:-3], 1024) if text.endswith("KiB") else (text.removesuffix("B"), 1)
    return int(float(number) * unit)


def base(rabbitmq: str) -> dict[str, Any]:
    with fresh(rabbitmq) as node:
        node.settle()
        return {
            "rabbitmq": ".".join(map(str, node.broker.version)),
            "memory": node.memory(),
            "rss": node.rss(),
            "high_watermark": float(node.broker.evaluate("vm_memory_monitor:get_vm_memory_high_watermark()")),
            "wal_max_size_bytes": int(
                node.broker.evaluate("element(2, application:get_env(ra, wal_max_size_bytes))"),
            ),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks broker_memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rabbitmq", default="system", help="system, 4.0, 4.3, or the path of a tree (%(default)s)")
    parser.add_argument("--messages", type=int, default=100_000, help="parked messages per row (%(default)s)")
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[256, 2048, 8192], help="sizes of the bodies")
    parser.add_argument("--queues", type=int, default=1_000, help="empty queues (%(default)s)")
    parser.add_argument(
        "--bindings", type=int, default=10_000, help="bindings; a tenth as many exchanges (%(default)s)"
    )
    parser.add_argument("--cluster", action="store_true", help="only the replicas of quorum queues, on three nodes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    begun = time.monotonic()
    if given.cluster:
        rows = list(replicas(given.rabbitmq, given.messages, given.sizes[0], given.queues))
        print_rows(rows, "Bytes each of a quorum queue's replicas, flushed, three nodes")
        if given.json:
            given.json.write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=2))
        return
    facts, deaths = base(given.rabbitmq), death_headers(given.rabbitmq)
    rows = [
        *messages(given.rabbitmq, given.messages, given.sizes),
        *queues(given.rabbitmq, given.queues),
        *routes(given.rabbitmq, given.bindings),
    ]
    print_report(facts, rows, deaths)
    progress.print(f"{time.monotonic() - begun:.0f} s")
    if given.json:
        measured = {"constants": constants(facts, rows, deaths), "rows": [asdict(row) for row in rows]}
        everything = {**facts, "death_headers": deaths, **measured}
        given.json.write_text(json.dumps(everything, indent=2))


if __name__ == "__main__":
    main()
