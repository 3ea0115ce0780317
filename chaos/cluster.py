"""The world of a chaos run on three nodes: every queue has a replica on each, every client knows all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from celery_rmq_delay.testing.servers.installation import Installation
from chaos.world import Load, World
from tests.support.brokers.clusters import QUICK_TO_NOTICE
from tests.support.brokers.networks import PartitionedCluster

NODES = 3


def cluster_world(folder: Path, load: Load, installation: Installation) -> World:
    """Return the world on a cluster that can be partitioned, with queues available while two of its nodes are."""
    cluster = PartitionedCluster(NODES, installation.server, installation.root, config=QUICK_TO_NOTICE)
    return World(folder, replace(load, queue_types=("quorum", "quorum")), cluster)
