"""The faults of a cluster: its own, and those of all worlds except the failure of the only broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from chaos.faults import BROKER, FAULTS, NETWORK
from chaos.strikes import Effect, Fault, Victims
from chaos.world import World
from tests.support.brokers.clusters import await_all, move_leaders, seen
from tests.support.brokers.networks import PartitionedCluster
from tests.support.waiting import wait_for


def _cluster(world: World) -> PartitionedCluster:
    assert isinstance(world.broker, PartitionedCluster)
    return world.broker


def _all_is_well(world: World) -> None:
    """Wait until all nodes are back, with the settings of the run; then act as an operator of RabbitMQ < 4.3 must."""
    cluster = _cluster(world)
    await_all(cluster)
    world.tune()
    if cluster.version < (4, 3):
        move_leaders(world.living_node)


@contextmanager
def kill_node(world: World, dice: Random) -> Iterator[Victims]:
    """Kill a node, and restart it later."""
    node = dice.choice(world.nodes)
    node.kill()
    try:
        yield Victims(None)
    finally:
        node.start()
        _all_is_well(world)


@contextmanager
def rolling_restart(world: World, _dice: Random) -> Iterator[Victims]:
    """Restart all nodes gracefully, one after the other, each when the previous one is back."""
    for node in world.nodes:
        node.restart()
        _all_is_well(world)
    yield Victims(None)


@contextmanager
def cut_off_a_node(world: World, dice: Random) -> Iterator[Victims]:
    """Partition one node from the others until all have detected it, and a while longer; clients reach all three."""
    node = dice.choice(world.nodes)
    others = [each for each in world.nodes if each is not node]
    with _cluster(world).partition(node):
        wait_for(lambda: not seen(node) and all(len(seen(each)) == 1 for each in others), "the partition is detected")
        yield Victims(None)
    _all_is_well(world)


@contextmanager
def half_open_to_a_node(world: World, dice: Random) -> Iterator[Victims]:
    """Silence all connections to one node without closing them; new ones work. Cut the old ones at the end."""
    node = dice.randrange(len(world.nodes))
    proxies = [link.proxies[node] for link in world.links.values()]
    for proxy in proxies:
        proxy.hold()
    try:
        yield Victims(None)
    finally:
        for proxy in proxies:
            proxy.cut()


NODES = frozenset({BROKER, NETWORK})

CLUSTER_FAULTS = (
    Fault("kill a node", kill_node, Effect.BROKER, lasts=(0.0, 8.0), touches=NODES, takes=8.0),
    Fault("rolling restart", rolling_restart, Effect.BROKER, touches=NODES, takes=18.0),
    Fault("minority partition", cut_off_a_node, Effect.BROKER, lasts=(0.0, 10.0), touches=NODES, takes=10.0),
    Fault("half-open to a node", half_open_to_a_node, Effect.CONNECTION, lasts=(2.0, 12.0), touches=NODES),
)

#: Nodes are restarted one by one here, and all queues are quorum queues.
_OF_ONE_NODE = {"restart the broker", "change a queue's type"}
FAULTS_OF_CLUSTERS = (*(fault for fault in FAULTS if fault.name not in _OF_ONE_NODE), *CLUSTER_FAULTS)
