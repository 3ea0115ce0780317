"""Private servers: started, killed, restarted and removed."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import amqp
import kombu
import psutil
import pytest

from celery_rmq_delay.management.client import Management
from celery_rmq_delay.testing import (
    PrivateBroker,
    PrivateServerError,
    ServerNotFoundError,
    ServerStartError,
)
from celery_rmq_delay.testing.plugin import skip_or_fail
from celery_rmq_delay.testing.servers import process
from celery_rmq_delay.testing.servers.broker import _name_hosts
from celery_rmq_delay.testing.servers.host import free_port, is_free
from tests.support.corpus import corpus
from tests.support.servers.cluster import PrivateCluster
from tests.support.servers.redis import PrivateRedis
from tests.support.waiting import SECONDS, wait_for

HOLDER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it ignored
from celery_rmq_delay.management.client import Management
from celery_rmq_delay.testing import PrivateBroker
broker = PrivateBroker(sys.argv[1] or None, sys.argv[2] or None, management=True)
broker.start()
print(broker.pid, broker.port, broker.settings.epmd_port, broker.log_path.parent.parent, flush=True)
sys.stdin.read()
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def processes_naming(text):
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found


@pytest.fixture(scope="module")
def where(rmq_installation):
    """Server and tree of the RabbitMQ of this test run."""
    return rmq_installation.server, str(rmq_installation.root) if rmq_installation.root else None


def put_durable_message(url, **arguments):
    with kombu.Connection(url, transport_options={"confirm_publish": True}) as connection:
        queue = kombu.Queue("kept", durable=True, queue_arguments={"x-queue-type": "quorum", **arguments})
        connection.Producer().publish("still here", routing_key="kept", declare=[queue], delivery_mode=2)


def take_message(url):
    """Return the body of the queue's message when it arrives; a queue may have no leader for a moment."""
    taken: list[object] = []

    def take():
        with contextlib.suppress(amqp.InternalError), kombu.Connection(url) as connection:
            message = connection.default_channel.basic_get("kept", no_ack=True)
            taken.extend([message.body] if message else [])
        return taken

    wait_for(take, "the arrival of a message")
    return taken[0]


def test_the_broker_reports_its_version_and_serves_amqp_and_management(managed):
    assert managed.version >= (3, 8, 0)
    assert managed.installation.version == ".".join(map(str, managed.version))
    with kombu.Connection(managed.url) as connection:
        connection.ensure_connection(max_retries=1)
    assert managed.management_url is not None
    with Management(managed.management_url, "/", "", "") as api:
        assert api.version() == ".".join(map(str, managed.version))


def test_several_callers_can_evaluate_at_once(managed):
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda number: managed.evaluate(f"{number} + 1"), range(40)))
    assert found == [str(number + 1) for number in range(40)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_node_listens_on_loopback_only(managed):
    own = managed.settings
    ports = {own.port, own.dist_port, own.epmd_port, own.management_port}
    tables = [Path(f"/proc/{managed.pid}/net/{table}").read_text() for table in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    listening = [row[1].rsplit(":", 1) for row in rows if row[3] == "0A"]
    addresses = [address for address, port in listening if int(port, 16) in ports]
    assert len(addresses) >= 4
    assert {*addresses} <= {"0100007F", "00000000000000000000000001000000"}


def test_the_statistics_of_the_node_itself_have_their_default_interval(managed):
    """In 3.10 they stop, as the management API's do, when a tool and a client connect from the same port number."""
    assert re.search(r"\b5000\b", managed.evaluate("sys:get_state(rabbit_mgmt_external_stats)"))


def test_a_vhost_is_usable_at_once_and_gone_after_its_deletion(managed):
    url = managed.vhost("a vhost/with ünusual name")
    put_durable_message(url)
    assert take_message(url) == "still here"
    managed.delete_vhost("a vhost/with ünusual name")
    with pytest.raises(amqp.NotAllowed), kombu.Connection(url) as connection:
        connection.connect()


@pytest.mark.slow
def test_a_vhost_deleted_right_after_a_crash_leaves_quorum_queues_dead_lettering(where):
    at_least_once = {"x-queue-type": "quorum", "x-dead-letter-exchange": "amq.fanout", "x-message-ttl": 1}
    at_least_once |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    with PrivateBroker(*where) as broker:
        with kombu.Connection(broker.vhost("gone")) as connection:
            for number in range(12):
                connection.default_channel.queue_declare(
                    f"in{number}", durable=True, auto_delete=False, arguments=at_least_once
                )
        broker.kill()
        broker.start()
        broker.delete_vhost("gone")
        with kombu.Connection(broker.vhost("next")) as connection:
            channel = connection.default_channel
            channel.queue_declare("in", durable=True, auto_delete=False, arguments=at_least_once)
            channel.queue_declare("out", exclusive=True)
            channel.queue_bind("out", "amq.fanout")
            connection.Producer().publish("a message", routing_key="in")
            wait_for(lambda: channel.basic_get("out", no_ack=True), "the dead letter")


def test_a_tree_has_its_machines_name_so_that_its_nodes_ask_no_name_server(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text(f"::1 localhost # {socket.gethostname()}\n192.0.2.1 other\n")
    _name_hosts(hosts)
    lines = hosts.read_text().splitlines()
    assert sorted(lines) == sorted([f"127.0.0.1 {socket.gethostname()}", *lines[1:]])
    assert [line for line in lines if line.startswith("192.")] == ["192.0.2.1 other"]
    _name_hosts(hosts)
    assert hosts.read_text().splitlines() == lines
    assert list(tmp_path.iterdir()) == [hosts]


def test_the_tree_of_a_started_node_names_localhost_and_the_machine(managed, where):
    known = Path(where[1] or "/", "etc", "hosts").read_text().split()
    assert "localhost" in known
    if where[1] is not None:
        assert socket.gethostname() in known


def test_rabbitmqctl_failures_show_its_output(managed):
    with pytest.raises(Exception, match="no_such_command"):
        managed.rabbitmqctl("no_such_command", timeout=SECONDS)


@pytest.mark.slow
def test_durable_messages_survive_a_restart_and_a_kill(where):
    with PrivateBroker(*where) as broker:
        put_durable_message(broker.url)
        port, first = broker.port, broker.pid
        broker.restart()
        assert (broker.port, broker.pid != first) == (port, True)
        assert take_message(broker.url) == "still here"

        put_durable_message(broker.url)
        broker.kill()
        assert broker.pid is None
        assert is_free(broker.port)
        broker.start()
        assert take_message(broker.url) == "still here"


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)], ids=["SIGKILL", "SIGINT"]
)
def test_a_broker_starts_beside_a_proxy_and_leaves_nothing_when_its_owner_ends(where, ending):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, where[0], where[1] or ""],
        env={**os.environ, "http_proxy": f"http://127.0.0.1:{free_port()}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with holder:
        assert holder.stdout is not None
        pid, port, epmd_port, folder = holder.stdout.readline().split(maxsplit=3)
        folder = folder.strip()
        assert alive(int(pid))
        os.kill(holder.pid, ending)
    wait_for(lambda: not alive(int(pid)), "the end of the node")
    wait_for(lambda: is_free(int(port)) and is_free(int(epmd_port)), "the release of the ports")
    wait_for(lambda: not processes_naming(Path(folder).name), "the end of the helpers")
    wait_for(lambda: not Path(folder).exists(), "the removal of the directory")


@pytest.mark.slow
def test_the_error_of_a_node_that_cannot_start_has_the_reason(where):
    broker = PrivateBroker(*where, config="no.such.setting = 1")
    with pytest.raises(ServerStartError, match=r"(?s)ended with code.*no\.such\.setting"), broker:
        pass
    assert broker.pid is None


def test_a_keeper_that_does_not_answer_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "ANSWER_TIMEOUT", 0.1)
    before = psutil.Process().children()
    kept = process.KeptProcess(["true"], env={}, output=tmp_path / "output.txt")
    (keeper,) = {*psutil.Process().children()} - {*before}
    keeper.suspend()
    with pytest.raises(ServerStartError, match=rf"keeper, process {keeper.pid}, did not start it within 0\.1 s"):
        kept.start()
    keeper.resume()
    kept.close()


def test_a_missing_server_is_named_with_the_fix():
    with pytest.raises(ServerNotFoundError, match="/no/such/rabbitmq-server"):
        PrivateBroker(server="/no/such/rabbitmq-server")


@pytest.mark.slow
def test_a_cluster_goes_on_without_its_first_node(where):
    with PrivateCluster(3, *where) as cluster:
        names = sorted(node.node for node in cluster.nodes)
        assert cluster.running_nodes() == names
        assert cluster.url.count(";") == 2
        put_durable_message(cluster.url, **{"x-quorum-initial-group-size": 3})
        cluster.nodes[0].kill()
        wait_for(lambda: cluster.running_nodes() == [n for n in names if n != cluster.nodes[0].node], "two nodes left")
        assert take_message(cluster.nodes[1].url) == "still here"
        cluster.nodes[0].start()
        wait_for(lambda: cluster.running_nodes() == names, "three nodes again")


def test_redis_starts_answers_and_ends(tmp_path):
    try:
        server = PrivateRedis()
    except ServerNotFoundError as error:
        skip_or_fail(error)
    with server, kombu.Connection(server.url) as connection:
        connection.ensure_connection(max_retries=1)
    assert is_free(server.port)


@corpus("victim", ["server", "keeper"])
def test_a_server_that_ended_by_itself_is_started_again_and_reported(victim):
    with PrivateRedis() as server:
        assert server.revive() is None
        assert server.pid is not None
        keeper = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1]
        os.kill(server.pid if victim == "server" else int(keeper), signal.SIGKILL)
        wait_for(lambda: server.pid is None, "its end")
        assert "ended unexpectedly" in str(server.revive())
        with kombu.Connection(server.url) as connection:
            connection.ensure_connection(max_retries=1)
        server.kill()
        assert server.revive() is None, "it was to end"
        assert server.pid is not None
    assert is_free(server.port)


def test_a_servers_files_are_deleted_at_its_end_even_if_its_keeper_was_killed():
    with PrivateRedis() as server:
        assert server.pid is not None
        folder = Path(f"/proc/{server.pid}/cwd").resolve()
        keeper = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1]
        os.kill(int(keeper), signal.SIGKILL)
        wait_for(lambda: server.pid is None, "its end")
        assert folder.name.startswith("redis-")
    assert not folder.exists()


def test_a_folder_that_the_start_script_cannot_take_is_refused(where, tmp_path, monkeypatch):
    if where[1] is not None:
        pytest.skip("in a tree the folder is the tree's")
    (odd := tmp_path / "with'quote").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(odd))
    with pytest.raises(PrivateServerError, match="Set TMPDIR to another one"), PrivateBroker(*where):
        pass
    assert list(odd.iterdir()) == []


def test_the_fixtures_give_a_fresh_vhost(rmq_broker, rmq_vhost):
    with kombu.Connection(rmq_vhost) as connection:
        connection.ensure_connection(max_retries=1)
    assert rmq_vhost.startswith("amqp")
