"""A private RabbitMQ cluster for tests."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

from celery_rmq_delay.testing.broker import PrivateBroker
from celery_rmq_delay.testing.context import PrivateServer


class PrivateCluster(PrivateServer):
    """Several :class:`PrivateBroker` nodes on this machine, joined as one cluster; a context manager.

    >>> with PrivateCluster() as cluster:  # doctest: +SKIP
    ...     cluster.nodes[1].kill()

    The nodes share a cookie and the Erlang port mapper of the first node, which lives as long as the cluster does,
    also while the first node itself is killed.

    :param size: number of nodes.
    :param server: as for :class:`PrivateBroker`, and so are the others.
    """

    def __init__(
        self,
        size: int = 3,
        server: str | os.PathLike[str] | None = None,
        root: str | os.PathLike[str] | None = None,
        management: bool = False,
        plugins: Sequence[str] = (),
        config: str = "",
    ) -> None:
        """Lay the nodes out; :meth:`start` or ``with`` starts them."""
        if size < 1:
            raise ValueError(f"A cluster has at least one node, not {size}.")
        cookie, prefix = secrets.token_hex(16), secrets.token_hex(4)
        self.nodes: list[PrivateBroker] = []
        for number in range(1, size + 1):
            node = PrivateBroker(
                server,
                root,
                name=f"node{number}-{prefix}",
                management=management and number == 1,
                plugins=[*plugins, *(["rabbitmq_management_agent"] if management else [])],
                config=config,
                cookie=cookie,
                epmd_port=self.nodes[0].settings.epmd_port if self.nodes else None,
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
        """Start each node and join it to the first.

        :raises ServerStartError: when a node does not start.
        """
        for node in self.nodes:
            node.start()
            if node is not self.nodes[0]:
                node.rabbitmqctl("stop_app")
                node.rabbitmqctl("join_cluster", self.nodes[0].node)
                node.rabbitmqctl("start_app")

    def stop(self) -> None:
        """End all nodes, the last one first. Safe to call twice."""
        for node in reversed(self.nodes):
            node.stop()

    def running_nodes(self) -> list[str]:
        """Return the names of the nodes that the first living one sees running."""
        living = next(node for node in self.nodes if node.pid is not None)
        names = living.evaluate("[atom_to_list(N) || N <- [node() | nodes()], rabbit:is_running(N)]")
        return sorted(name.strip('" ') for name in names.strip("[]").split(",") if name)
