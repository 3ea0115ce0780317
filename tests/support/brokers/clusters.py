"""Clusters in tests: network namespaces, connected nodes, and restarts."""

import pytest

from celery_rmq_delay.testing import PrivateBroker, PrivateServerError
from tests.support.brokers.networks import PrivateNetwork
from tests.support.servers.cluster import PrivateCluster
from tests.support.waiting import wait_for

#: Nodes that notice within some seconds that others are silent, and stop where they are the minority: before RabbitMQ
#: 4.3, which does not act on it.
QUICK_TO_NOTICE = "net_ticktime = 4\ncluster_partition_handling = pause_minority"
#: Seconds that an operator waits for a node that does not come back by itself.
_PATIENCE = 60.0


def need_networks() -> None:
    """Skip the test, with the reason, where no network namespaces can be made: not root, or not allowed."""
    try:
        with PrivateNetwork(1):
            pass
    except PrivateServerError as error:
        pytest.skip(str(error))


def seen(node: PrivateBroker) -> list[str]:
    return [name for name in node.evaluate("nodes()").strip("[]").split(",") if name]


def move_leaders(node: PrivateBroker) -> None:
    """Give each quorum queue of a node's cluster another leader."""
    node.evaluate(
        "[rabbit_quorum_queue:transfer_leadership(Q, hd([node() | nodes()] -- [element(2, amqqueue:get_pid(Q))])) || "
        "Q <- rabbit_amqqueue:list(), amqqueue:is_quorum(Q)]"
    )


def await_all(cluster: PrivateCluster) -> None:
    """Wait until RabbitMQ runs on all nodes, and all see each other; restart a node that does not come back.

    A node with Mnesia that stops just when a partition ends may wait without a limit.
    """
    for node in cluster.nodes:
        _await(cluster, node)


def _await(cluster: PrivateCluster, node: PrivateBroker) -> None:
    def is_back() -> bool:
        return node.evaluate("rabbit:is_running()") == "true" and len(seen(node)) == len(cluster.nodes) - 1

    try:
        wait_for(is_back, f"{node!r} in the cluster", _PATIENCE, 0.2)
    except AssertionError as error:
        print(f"{error}; it sees {seen(node)}: restarted")
        node.kill()
        node.start()
        wait_for(is_back, f"{node!r} in the cluster", pause=0.2)
