"""A node of a cluster dies while messages wait in quorum levels and tiers: none is lost, and duplicates are counted."""

import json
import threading
import time
from collections import Counter

import amqp
import kombu
import pytest

from celery_rmq_delay.amqp.capabilities import capabilities
from celery_rmq_delay.amqp.route import Route
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.names import Names
from celery_rmq_delay.topology.common import origin_arguments
from celery_rmq_delay.topology.ladder import LadderPlan
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers import parking
from tests.support.servers.cluster import PrivateCluster
from tests.support.waiting import wait_for

PARKED = 2_500
#: Seconds from the first message to the death of the node, half-way through the delays.
HALF = 12
LEVELS, LADDER = "levels", "ladder"
SETTINGS = {"exact_delays": "levels", "exact_queue_type": "quorum", "exact_levels": 6}
TIERS = Ladder(tuple(1000 * each for each in (6, 10, 14, 18, 22)))


class Publisher(threading.Thread):
    """Publishes numbered messages with delays into the levels until it is stopped; reconnects if necessary.

    It publishes unconfirmed messages again under the same number, and reports them.
    """

    def __init__(self, cluster, first):
        super().__init__()
        self._cluster, self._number = cluster, first
        self.confirmed: set[int] = set()
        self.attempts: Counter[int] = Counter()
        self.ended = threading.Event()

    def run(self):
        exact = parking.exact_delays(**SETTINGS)
        while not self.ended.is_set():
            for node in self._cluster.nodes:
                if node.pid is not None:
                    with kombu.Connection(node.url) as connection:
                        self._publish(connection, exact)

    def _publish(self, connection, exact):
        try:
            while not self.ended.is_set():
                route = exact.route(connection, 2000 + self._number % 5 * 1000, LEVELS, "countdown", 0)
                exact.prepare(connection, route)
                self.attempts[self._number] += 1
                confirmed, _ = parking.publish_all(connection, [(self._number, route)])
                if not confirmed:
                    return
                self.confirmed |= confirmed
                self._number += 1
        except (OSError, amqp.AMQPError, kombu.exceptions.OperationalError):
            return


def leaders(node):
    printed = node.rabbitmqctl("list_queues", "--quiet", "--formatter", "json", "name", "leader")
    return Counter(
        str(queue["leader"]) for queue in json.loads(printed) if ".retry." in queue["name"] or "levels" in queue["name"]
    )


def plan_of(connection):
    has_reason = capabilities(connection).reports_death_reason
    return LadderPlan(Names("rmq_delay"), LADDER, "quorum", "rmq_delay.exhausted", TIERS, reason_routing=has_reason)


def park_in_levels(connection):
    exact = parking.exact_delays(**SETTINGS)
    parking.declare_queue(connection, LEVELS, "quorum")
    exact.declare(connection, unused=True)
    exact.bind(connection, LEVELS)
    messages = [
        (number, exact.route(connection, 1000 * (4 + number % 24), LEVELS, "countdown", 0)) for number in range(PARKED)
    ]
    confirmed, _ = parking.publish_all(connection, messages)
    return confirmed


def park_in_tiers(connection):
    plan = plan_of(connection)
    arguments = origin_arguments(plan.names, plan.queue, plan.queue_type)
    parking.declare_queue(connection, plan.queue, "quorum", **arguments)
    apply_plan(connection, plan)
    queues = [queue.name for _, _, queue in plan.delay_queues([plan.ladder])]
    messages = [(number, Route("", queues[number % len(queues)])) for number in range(PARKED, 2 * PARKED)]
    confirmed, _ = parking.publish_all(connection, messages)
    return confirmed


@pytest.mark.slow
def test_messages_in_quorum_levels_and_tiers_outlive_the_death_of_their_leaders_node(rmq_installation):
    with PrivateCluster(3, rmq_installation.server, rmq_installation.root) as cluster:
        for node in cluster.nodes:
            parking.hasten(node)
        began = time.monotonic()
        with kombu.Connection(cluster.nodes[0].url) as connection:
            parked = park_in_levels(connection) | park_in_tiers(connection)
        assert parked == set(range(2 * PARKED))
        publisher = Publisher(cluster, 2 * PARKED)
        publisher.start()
        try:
            (leader, led), *_ = leaders(cluster.nodes[0]).most_common(1)
            victim = next(node for node in cluster.nodes if node.node == leader)
            survivor = next(node for node in cluster.nodes if node is not victim)
            wait_for(lambda: time.monotonic() - began > HALF, "half of the delays")
            victim.kill()
            before = len(publisher.confirmed)
            wait_for(lambda: len(publisher.confirmed) > before + 20, "confirms of the others")
            victim.start()
            wait_for(lambda: len(cluster.running_nodes()) == 3, "three nodes again")
        finally:
            publisher.ended.set()
            publisher.join()
        wanted = parked | publisher.confirmed
        found = parking.collect(survivor.url, [LEVELS, LADDER], wanted, 45, quiet=10)

    unsure = {number for number, count in publisher.attempts.items() if count > 1 or number not in wanted}
    by_broker = Counter(
        LEVELS if number < PARKED or number >= 2 * PARKED else LADDER for number in set(found.doubled) - unsure
    )
    print(
        f"RabbitMQ {survivor.version}: {len(wanted)} confirmed, {len(unsure)} unsure, {led} queues led by the victim; "
        f"doubled: {dict(by_broker)} by the broker, {len(set(found.doubled) & unsure)} by the publisher"
    )
    assert wanted <= set(found.counts)
    assert set(found.counts) - wanted <= unsure
    assert all(found.counts[number] <= publisher.attempts[number] for number in unsure)
    assert sum(by_broker.values()) <= parking.DEAD_LETTERS_AT_ONCE * led
