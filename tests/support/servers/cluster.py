"""A private RabbitMQ cluster for tests."""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from celery_rmq_delay.exceptions import ServerStartError
from celery_rmq_delay.testing.servers.broker import START_TIMEOUT, PrivateBroker
from celery_rmq_delay.testing.servers.host import LOOPBACK, Host
from celery_rmq_delay.testing.servers.process import PrivateServer


class PrivateCluster(PrivateServer):
    """Several :class:`PrivateBroker` nodes on this machine, joined as one cluster; a context manager.

    The nodes share a cookie and the Erlang port mapper of the first node, which runs as long as the cluster does,
    also while the first node is killed.

    :param where: server and root, as for :class:`PrivateBroker`.
    :param hosts: the hosts of the nodes, one each; default: this machine's loopback.
    """

    def __init__(self, size: int = 3, *where: Any, config: str = "", hosts: Sequence[Host] = ()) -> None:
        cookie, prefix = secrets.token_hex(16), secrets.token_hex(4)
        hosts = hosts or [LOOPBACK] * size
        names = [f"node{number}-{prefix}" for number in range(1, size + 1)]
        # The first node without data tries to join the others, which wait for it: on 3.10 ten times by default.
        formation = [
            "cluster_formation.peer_discovery_backend = classic_config",
            "cluster_formation.discovery_retry_limit = 2",
            *(
                f"cluster_formation.classic_config.nodes.{number} = {name}@{host.name}"
                for number, (name, host) in enumerate(zip(names, hosts, strict=True), 1)
            ),
        ]
        self.nodes: list[PrivateBroker] = []
        for name, host in zip(names, hosts, strict=True):
            node = PrivateBroker(
                *where,
                name=name,
                config="\n".join([config, *formation]),
                cookie=cookie,
                epmd_port=self.nodes[0].settings.epmd_port if self.nodes else None,
                host=host,
            )
            self.nodes.append(node)

    @property
    def url(self) -> str:
        """The URLs of all nodes, joined with ``;``: Kombu tries the next one when a connection fails."""
        return ";".join(node.url for node in self.nodes)

    @property
    def version(self) -> tuple[int, int, int]:
        return self.nodes[0].version

    def start(self) -> None:
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.await_ready()
        names, deadline = sorted(node.node for node in self.nodes), time.monotonic() + START_TIMEOUT
        while (running := self.running_nodes()) != names:
            if time.monotonic() > deadline:
                raise ServerStartError(f"Of the nodes {names} only {running} joined in {START_TIMEOUT:g} s.")
            time.sleep(0.1)

    def stop(self) -> None:
        """End all nodes, the last one first. Safe to call twice."""
        for node in reversed(self.nodes):
            node.stop()

    def running_nodes(self) -> list[str]:
        """Return the names of the running nodes, as seen by the first one of them."""
        living = next(node for node in self.nodes if node.pid is not None)
        names = living.evaluate("[atom_to_list(N) || N <- [node() | nodes()], rabbit:is_running(N)]")
        return sorted(name.strip('" ') for name in names.strip("[]").split(",") if name)
