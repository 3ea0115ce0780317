"""Networks for private servers that can be cut: hosts in network namespaces, and a cluster on them."""

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


class NetworkHost(Host):
    """A host of a :class:`PrivateNetwork`; its servers run in a network namespace of their own."""

    is_apart = True

    def __init__(self, number: int) -> None:
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
        return ["nsenter", f"--net=/proc/{self.holder}/ns/net", "--", *argv]


class PrivateNetwork(PrivateServer):
    """Hosts with an address each, connected by a switch that can drop packets.

    Made of Linux network namespaces, which live as long as their processes: it ends with the process that made it.
    The machine's own network is not affected.

    :raises PrivateServerError: where only root on Linux with iproute2 and util-linux can make them.
    """

    def __init__(self, size: int) -> None:
        programs = [program for program in ("ip", "nsenter", "sleep") if shutil.which(program) is None]
        if sys.platform != "linux" or os.geteuid() != 0 or programs:
            raise PrivateServerError(
                f"Partitions need Linux, root, and the programs ip, nsenter and sleep; no {programs}"
            )
        self.hosts = [NetworkHost(number) for number in range(1, size + 1)]
        self._cuts = 0

    def start(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="net-"))
        output = folder / "output.txt"
        names = ("address", "gateway", "device", "ports")
        spec = [{name: getattr(host, name) for name in names} for host in self.hosts]
        script = Path(__file__).with_name("network_switch.py")
        self._process = process = KeptProcess(
            [sys.executable, "-I", "-S", str(script), json.dumps(spec)],
            env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            output=output,
            remove=folder,
        )
        process.start()
        wait_until_ready(
            lambda: output.read_text().startswith("["), process, what="A private network", timeout=30, logs=[output]
        )
        for host, holder in zip(self.hosts, json.loads(output.read_text()), strict=True):
            host.holder = holder

    def stop(self) -> None:
        """End the hosts; processes that still run on them lose their network. Safe to call twice."""
        if self._process is not None:
            self._process.close()
        self._process = None

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
            if self.pid is not None:
                self._ip([f"rule delete {rule}" for rule in rules])

    def _ip(self, lines: list[str]) -> None:
        command = ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--", "ip", "-batch", "-"]
        done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True)
        if done.returncode:
            raise PrivateServerError(f"The private network could not be changed: {done.stderr.strip()}")


class PartitionedCluster(PrivateCluster):
    """A cluster whose nodes can be cut off from each other: each has a network of its own."""

    def __init__(self, size: int, *where: Any, config: str = "") -> None:
        self._network = PrivateNetwork(size)
        super().__init__(size, *where, config=config, hosts=self._network.hosts)

    def start(self) -> None:
        self._network.start()
        super().start()

    def stop(self) -> None:
        super().stop()
        self._network.stop()

    @contextlib.contextmanager
    def partition(self, *nodes: PrivateBroker) -> Iterator[None]:
        """Cut these nodes off from the others for the length of a ``with`` block.

        The nodes notice it after their ``net_ticktime``, 60 s unless ``config`` sets another, and then act by
        ``cluster_partition_handling``. Clients still reach all of them.
        """
        with self._network.partition([self._network.hosts[self.nodes.index(node)] for node in nodes]):
            yield
