"""A private RabbitMQ cluster for tests."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence

from celery_rmq_delay.exceptions import ServerStartError
from celery_rmq_delay.testing.servers.broker import START_TIMEOUT, PrivateBroker
from celery_rmq_delay.testing.servers.host import LOOPBACK, Host
from celery_rmq_delay.testing.servers.process import PrivateServer


class PrivateCluster(PrivateServer):
    """Several :class:`PrivateBroker` nodes on this machine, joined as one cluster; a context manager.

    >>> with PrivateCluster() as cluster:  # doctest: +SKIP
    ...     cluster.nodes[1].kill()

    The nodes share a cookie and the Erlang port mapper of the first node, which runs as long as the cluster does,
    also while the first node is killed.

    :param size: number of nodes.
    :param server: as for :class:`PrivateBroker`, like the parameters after it.
    :param hosts: the hosts of the nodes, one each; default: this machine's loopback.
    """

    def __init__(
        self,
        size: int = 3,
        server: str | os.PathLike[str] | None = None,
        root: str | os.PathLike[str] | None = None,
        management: bool = False,
        plugins: Sequence[str] = (),
        config: str = "",
        hosts: Sequence[Host] = (),
    ) -> None:
        """Configure the nodes; :meth:`start` or ``with`` starts them."""
        if size < 1:
            raise ValueError(f"A cluster needs at least one node, found size={size}.")
        cookie, prefix = secrets.token_hex(16), secrets.token_hex(4)
        hosts = hosts or [LOOPBACK] * size
        names = [f"node{number}-{prefix}" for number in range(1, size + 1)]
        formation = _formation([f"{name}@{host.name}" for name, host in zip(names, hosts, strict=True)])
        self.nodes: list[PrivateBroker] = []
        for name, host in zip(names, hosts, strict=True):
            node = PrivateBroker(
                server,
                root,
                name=name,
                management=management and not self.nodes,
                plugins=[*plugins, *(["rabbitmq_management_agent"] if management else [])],
                config=f"{config}\n{formation}",
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
    def management_url(self) -> str | None:
        """The management API of the first node, see :attr:`PrivateBroker.management_url`."""
        return self.nodes[0].management_url

    @property
    def version(self) -> tuple[int, int, int]:
        """The version of the first node."""
        return self.nodes[0].version

    def start(self) -> None:
        """Start the nodes and wait until they are one cluster.

        :raises ServerStartError: when a node does not start, or when they do not form a cluster.
        """
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.await_ready()
        names, deadline = sorted(node.node for node in self.nodes), time.monotonic() + START_TIMEOUT
        while (running := self.running_nodes()) != names:
            if time.monotonic() > deadline:
                raise ServerStartError(
                    f"Of the nodes {', '.join(names)} only {', '.join(running)} joined it in {START_TIMEOUT:g} s."
                )
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


def _formation(names: Sequence[str]) -> str:
    """Return the lines of rabbitmq.conf that make nodes without data form one cluster.

    The first node tries to join the others, which wait for it: on 3.10 ten times by default.
    """
    lines = [f"cluster_formation.classic_config.nodes.{number} = {name}" for number, name in enumerate(names, 1)]
    return "\n".join(
        [
            "cluster_formation.peer_discovery_backend = classic_config",
            "cluster_formation.discovery_retry_limit = 2",
            *lines,
        ]
    )
