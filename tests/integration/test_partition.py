"""Private networks of servers: joined, cut, healed, removed; and a cluster on them."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import amqp
import pytest

from celery_rmq_delay.testing.servers.host import Host, free_port
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
def network():
    need_networks()
    network = PrivateNetwork(3)
    network.hosts[0].publish(free_port())
    with network:
        yield network


def run(host, script, *arguments):
    return host.command(sys.executable, "-I", "-S", "-c", script, *map(str, arguments))


def reaches(caller, called, port=PORT, timeout=10.0):
    done = subprocess.run(run(caller, CALL, called.address, port, timeout), stderr=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def is_connected(host, port):
    command = host.command("ss", "-Htn", "state", "established", f"sport = :{port}")
    return bool(subprocess.check_output(command, text=True))


def in_its_network(pid):
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def test_hosts_reach_each_other_except_across_a_partition(network):
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


def test_published_ports_are_reached_from_this_machine_also_across_a_partition(network):
    host = network.hosts[0]
    (port,) = host.ports
    assert not reaches(Host(), Host(), port)  # no server listens yet: reset
    with subprocess.Popen(run(host, ECHO, host.address, port)) as server:
        try:
            wait_for(lambda: reaches(Host(), Host(), port), "the server")
            with network.partition([host]):
                assert reaches(Host(), Host(), port)
            with socket.create_connection(("127.0.0.1", port), timeout=60) as client, suppress(ConnectionError):
                wait_for(lambda: is_connected(host, port), "the server's side of the connection")
                server.kill()
                assert client.recv(100) == b"", "the end of the connection"
        finally:
            server.kill()
    assert not reaches(Host(), Host(), port)


def test_a_network_ends_with_the_process_that_made_it():
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


class Client:
    """Publishes to one node with confirm, each time on a new connection."""

    def __init__(self, node):
        self._node = node
        self.confirmed = 0

    def publish(self):
        """Return whether the node confirmed a message in the quorum queue within some seconds."""
        try:
            with closing(self._connection()) as connection:
                message = amqp.Message(b"x", delivery_mode=2)
                connection.channel().basic_publish_confirm(message, "", "work", confirm_timeout=3)
        except (OSError, amqp.AMQPError):
            return False
        self.confirmed += 1
        return True

    def declare(self):
        with closing(self._connection()) as connection:
            quorum = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3}
            connection.channel().queue_declare("work", durable=True, auto_delete=False, arguments=quorum)

    def waiting(self):
        with closing(self._connection()) as connection:
            return int(connection.channel().queue_declare("work", passive=True).message_count)

    def _connection(self):
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
def test_a_cluster_goes_on_without_the_minority_and_takes_it_back(rmq_installation):
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
