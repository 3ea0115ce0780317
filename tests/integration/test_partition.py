"""Private networks of servers: joined, cut, healed, removed; and a cluster on them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import amqp
import pytest

from celery_rmq_delay.testing import PrivateBroker, PrivateServerError, ServerStartError
from celery_rmq_delay.testing.servers.host import Host, free_port
from celery_rmq_delay.testing.servers.installation import Installation
from tests.support.brokers.clusters import QUICK_TO_NOTICE, await_all, need_networks, seen
from tests.support.brokers.networks import PartitionedCluster, PrivateNetwork
from tests.support.waiting import wait_for

PORT = 7000
ECHO = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=50)
while True:
    with listener.accept()[0] as client:
        client.sendall(client.recv(100))
"""
CALL = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])) as server:
    server.sendall(b"hello")
    sys.exit(0 if server.recv(100) == b"hello" else 1)
"""
OWNER = """
import sys
from tests.support.brokers.networks import PrivateNetwork
network = PrivateNetwork(2)
network.start()
print(*(host.holder for host in network.hosts), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def network() -> Iterator[PrivateNetwork]:
    need_networks()
    network = PrivateNetwork(3)
    network.hosts[0].publish(free_port())
    with network:
        yield network


def run(host: Host, script: str, *arguments: object) -> list[str]:
    return host.command(sys.executable, "-I", "-S", "-c", script, *map(str, arguments))


def reaches(caller: Host, called: Host, port: int = PORT, timeout: float = 10.0) -> bool:
    done = subprocess.run(run(caller, CALL, called.address, port, timeout), stderr=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def connections(host: Host, port: int) -> str:
    return subprocess.check_output(host.command("ss", "-Htn", "state", "established", f"sport = :{port}"), text=True)


def received(server: socket.socket) -> bytes:
    """Return the next bytes of a server; nothing when the connection ends."""
    try:
        return server.recv(100)
    except ConnectionError:
        return b""


def in_its_network(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def test_hosts_reach_each_other_except_across_a_partition(network: PrivateNetwork) -> None:
    one, two, three = network.hosts
    servers = [subprocess.Popen(run(host, ECHO, host.address, PORT)) for host in network.hosts]
    try:
        for host in network.hosts:
            wait_for(lambda host=host: reaches(host, host), "a server")
        assert reaches(one, two)
        with network.partition([one]):
            assert not reaches(one, two, timeout=0.5)
            assert not reaches(two, one, timeout=0.5)
            assert reaches(two, three)
            assert reaches(one, one)
            with network.partition([two]):
                assert not reaches(two, three, timeout=0.5)
            assert reaches(two, three)
            assert not reaches(one, two, timeout=0.5)
        assert reaches(one, two)
        assert reaches(two, one)
    finally:
        for server in servers:
            server.kill()
            server.wait()


def test_published_ports_are_reached_from_this_machine_also_across_a_partition(network: PrivateNetwork) -> None:
    host = network.hosts[0]
    (port,) = host.ports
    assert not reaches(Host(), Host(), port)  # no server listens yet: reset
    server = subprocess.Popen(run(host, ECHO, host.address, port))
    try:
        wait_for(lambda: reaches(Host(), Host(), port), "the server")
        with network.partition([host]):
            assert reaches(Host(), Host(), port)
    finally:
        server.kill()
        server.wait()
    assert not reaches(Host(), Host(), port)


def test_a_client_notices_the_death_of_its_server(network: PrivateNetwork) -> None:
    host = network.hosts[0]
    (port,) = host.ports
    with subprocess.Popen(run(host, ECHO, host.address, port)) as server:
        try:
            wait_for(lambda: reaches(Host(), Host(), port), "the server")
            with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                wait_for(lambda: connections(host, port), "the server's side of the connection")
                server.kill()
                assert not received(client)
        finally:
            server.kill()


def test_a_network_ends_with_the_process_that_made_it() -> None:
    need_networks()
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner.stdin, owner.stdout:
        holders = [int(word) for word in owner.stdout.readline().split()]
        networks = [in_its_network(pid) for pid in holders]
        assert len(set(networks) - {"", in_its_network(os.getpid())}) == 2
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        wait_for(lambda: not any(map(in_its_network, holders)), "the end of the networks' processes")
    others = {in_its_network(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")}
    assert others.isdisjoint(networks)


def test_a_network_that_is_not_started_is_an_error() -> None:
    need_networks()
    network = PrivateNetwork(2)
    with pytest.raises(PrivateServerError, match=r"network of the host 10\.0\.1\.2 is not started"):
        network.hosts[0].command("true")
    with pytest.raises(PrivateServerError, match="not started cannot be cut"), network.partition(network.hosts[:1]):
        pass


def test_a_port_that_is_taken_ends_the_start_with_the_reason() -> None:
    need_networks()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        network = PrivateNetwork(1)
        network.hosts[0].publish(taken.getsockname()[1])
        with pytest.raises(ServerStartError, match=r"(?s)A private network.*Address already in use"), network:
            pass


def test_networks_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PrivateServerError, match="only root may make: run as root"):
        PartitionedCluster(3)


class Client:
    """Publishes to one node with confirm, each time on a new connection."""

    def __init__(self, node: PrivateBroker) -> None:
        self._node = node
        self.confirmed = 0

    def publish(self) -> bool:
        """Return whether the node confirmed a message in the quorum queue within some seconds."""
        try:
            with closing(self._connection()) as connection:
                message = amqp.Message(b"x", delivery_mode=2)
                connection.channel().basic_publish_confirm(message, "", "work", confirm_timeout=3)
        except (OSError, amqp.AMQPError):
            return False
        self.confirmed += 1
        return True

    def declare(self) -> None:
        with closing(self._connection()) as connection:
            quorum = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3}
            connection.channel().queue_declare("work", durable=True, auto_delete=False, arguments=quorum)

    def waiting(self) -> int:
        """Return how many messages are in the queue."""
        with closing(self._connection()) as connection:
            return int(connection.channel().queue_declare("work", passive=True).message_count)

    def _connection(self) -> amqp.Connection:
        connection = amqp.Connection(
            f"127.0.0.1:{self._node.port}", connect_timeout=5, read_timeout=5, write_timeout=5, confirm_publish=True
        )
        try:
            connection.connect()
        except BaseException:
            connection.collect()
            raise
        return connection


@pytest.mark.slow
def test_a_cluster_goes_on_without_the_minority_and_takes_it_back(rmq_installation: Installation) -> None:
    need_networks()
    with PartitionedCluster(3, rmq_installation.server, rmq_installation.root, config=QUICK_TO_NOTICE) as cluster:
        clients = [Client(node) for node in cluster.nodes]
        minority, *majority = clients
        minority.declare()
        for client in clients:
            wait_for(client.publish, "a confirm of each node")
        with cluster.partition(cluster.nodes[0]):
            for client in majority:
                wait_for(client.publish, "a confirm of the majority")
            # If only one side has noticed a partition when it ends, Mnesia's partition never heals.
            wait_for(lambda: [len(seen(node)) for node in cluster.nodes] == [0, 1, 1], "all have noticed")
            wait_for(lambda: not minority.publish(), "the minority has stopped, or takes nothing")
        await_all(cluster)
        for client in clients:
            wait_for(client.publish, "a confirm of each node again")
        wanted = sum(client.confirmed for client in clients)
        wait_for(lambda: majority[0].waiting() >= wanted, "all that was confirmed")
