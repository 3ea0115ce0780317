"""Networks for private servers that can be cut: hosts in network namespaces, and a cluster on them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from celery_rmq_delay.testing import PrivateBroker, PrivateServerError
from celery_rmq_delay.testing.servers.host import Host
from celery_rmq_delay.testing.servers.process import KeptProcess, PrivateServer, wait_until_ready
from tests.support.servers.cluster import PrivateCluster

START_TIMEOUT = 30.0
"""Seconds a network may take until it is there."""

_SWITCH = Path(__file__).with_name("network_switch.py")
_PROGRAMS = ("ip", "nsenter", "sleep")


class NetworkHost(Host):
    """A host of a :class:`PrivateNetwork`; its servers run in a network namespace of their own."""

    is_apart = True

    def __init__(self, number: int) -> None:
        """Set the addresses."""
        self.address = self.name = f"10.0.{number}.2"
        self.gateway = f"10.0.{number}.1"
        self.device = f"host{number}"
        self.ports: list[int] = []
        self.holder: int | None = None

    def publish(self, port: int) -> None:
        """Open a port for clients; before the network starts."""
        self.ports.append(port)

    def command(self, *argv: str) -> list[str]:
        """Return the command line that becomes ``argv`` in the host's network namespace."""
        if self.holder is None:
            raise PrivateServerError(f"The private network of the host {self.name} is not started.")
        return ["nsenter", f"--net=/proc/{self.holder}/ns/net", "--", *argv]


class PrivateNetwork(PrivateServer):
    """Hosts with an address each, connected by a switch that can drop packets.

    Made of Linux network namespaces, which live as long as their processes: it ends with the process that made it.
    The machine's own network is not affected.

    :param size: number of hosts.
    :raises PrivateServerError: if it is not supported: not on Linux, not as root, no iproute2.
    """

    def __init__(self, size: int) -> None:
        """Set the addresses of the hosts; :meth:`start` or ``with`` makes them."""
        _require_namespaces()
        self.hosts = [NetworkHost(number) for number in range(1, size + 1)]
        self._cuts = 0
        self._process: KeptProcess | None = None

    def start(self) -> None:
        """Make the hosts and open the ports that were published.

        :raises ServerStartError: with what the kernel refused.
        """
        folder = Path(tempfile.mkdtemp(prefix="net-"))
        output = folder / "output.txt"
        spec = [
            {"address": host.address, "gateway": host.gateway, "device": host.device, "ports": host.ports}
            for host in self.hosts
        ]
        self._process = process = KeptProcess(
            [sys.executable, "-I", "-S", str(_SWITCH), json.dumps(spec)],
            env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            output=output,
            remove=folder,
        )
        process.start()
        wait_until_ready(
            lambda: output.read_text().startswith("["),
            process,
            what="A private network",
            timeout=START_TIMEOUT,
            logs=[output],
        )
        for host, holder in zip(self.hosts, json.loads(output.read_text()), strict=True):
            host.holder = holder

    def stop(self) -> None:
        """End the hosts; processes that still run on them lose their network. Safe to call twice."""
        if self._process is not None:
            self._process.close()
        self._process = None
        for host in self.hosts:
            host.holder = None

    @contextlib.contextmanager
    def partition(self, hosts: Collection[NetworkHost]) -> Iterator[None]:
        """Drop every packet between these hosts and the others, without a reply to either, until the block ends.

        Clients on this machine still reach all of them.
        """
        # Before the main table (32766): the first of our rules that fits a packet on its way through decides.
        self._cuts += 1
        priority = 1000 + self._cuts
        rest = [host for host in self.hosts if host not in hosts]
        pairs = [pair for one in hosts for other in rest for pair in ((one, other), (other, one))]
        rules = [f"iif {sender.device} to {to.address} priority {priority} blackhole" for sender, to in pairs]
        self._ip([f"rule add {rule}" for rule in rules])
        try:
            yield
        finally:
            if self._process is not None and self._process.is_running():
                self._ip([f"rule delete {rule}" for rule in rules])

    def _ip(self, lines: list[str]) -> None:
        if self._process is None or not self._process.is_running():
            raise PrivateServerError("A private network that is not started cannot be cut.")
        done = subprocess.run(
            ["nsenter", f"--net=/proc/{self._process.pid}/ns/net", "--", "ip", "-batch", "-"],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise PrivateServerError(f"The private network could not be changed: {done.stderr.strip()}")


class PartitionedCluster(PrivateCluster):
    """A cluster whose nodes can be cut off from each other: each has a network of its own.

    ``options`` are those of :class:`PrivateCluster`. Raises `PrivateServerError` as `PrivateNetwork` does.
    """

    def __init__(self, size: int = 3, *options: Any, **more: Any) -> None:
        self._network = PrivateNetwork(size)
        super().__init__(size, *options, hosts=self._network.hosts, **more)

    def start(self) -> None:
        """Start the network, then the nodes."""
        self._network.start()
        super().start()

    def stop(self) -> None:
        """End the nodes, then the network."""
        super().stop()
        self._network.stop()

    @contextlib.contextmanager
    def partition(self, *nodes: PrivateBroker) -> Iterator[None]:
        """Cut these nodes off from the others for the length of a ``with`` block: packets between them are dropped.

        The nodes notice it after their ``net_ticktime``, 60 s unless ``config`` sets another, and then act by
        ``cluster_partition_handling``. Clients still reach all of them.
        """
        with self._network.partition([self._network.hosts[self.nodes.index(node)] for node in nodes]):
            yield


def _require_namespaces() -> None:
    if sys.platform != "linux":
        raise PrivateServerError("Partitions need network namespaces, which only Linux has: use a cluster without.")
    if os.geteuid() != 0:
        raise PrivateServerError("Partitions need network namespaces, which only root may make: run as root.")
    if missing := [program for program in _PROGRAMS if shutil.which(program) is None]:
        raise PrivateServerError(
            f"Partitions need the program {' and '.join(missing)}: install iproute2, util-linux and coreutils."
        )
