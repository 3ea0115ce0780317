"""The client of the management API: reads, writes and errors."""

import re
import socket
import ssl
import time
import uuid
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import httpx
import kombu
import pytest
import trustme

from celery_rmq_delay.exceptions import ManagementError
from celery_rmq_delay.management.client import URL_VARIABLE, Management
from celery_rmq_delay.management.records import Policy
from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.testing.servers.external import ExternalBroker
from celery_rmq_delay.testing.servers.host import free_port
from tests.support.corpus import corpus
from tests.support.waiting import BUSY, wait_for


@pytest.fixture
def api(managed):
    with Management(str(managed.management_url), "/", "guest", "guest") as client:
        yield client


@pytest.fixture
def user(managed):
    """Add users; return the URL of the API with their credentials."""
    http = httpx.Client(base_url=f"{managed.management_url}/api/")
    added: list[str] = []

    def add(tags, vhost="/"):
        name = f"u{uuid.uuid4().hex[:8]}"
        added.append(name)
        http.put(f"users/{name}", json={"password": "s e/c:r@t", "tags": tags}).raise_for_status()
        if vhost is not None:
            everything = {"configure": ".*", "write": ".*", "read": ".*"}
            http.put(f"permissions/{vhost.replace('/', '%2F')}/{name}", json=everything).raise_for_status()
        return f"http://{name}:s%20e%2Fc%3Ar%40t@127.0.0.1:{managed.settings.management_port}"

    yield add
    for name in added:
        http.delete(f"users/{name}").raise_for_status()
    http.close()


def problem(client, call=Management.version):
    """Return the client's error; neither it nor its causes may contain a secret."""
    with client, pytest.raises(ManagementError) as raised:
        call(client)
    chain: BaseException | None = raised.value
    while chain is not None:
        assert "s e/c:r@t" not in repr(chain)
        assert "s%20e" not in repr(chain)
        chain = chain.__cause__ or chain.__context__
    return str(raised.value)


def test_the_api_is_looked_for_on_the_brokers_host(monkeypatch):
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    with Management.of(kombu.Connection("amqp://me:s%40@rabbit.example:5673/a%2Fb")) as plain:
        assert (plain.url, plain.vhost, plain.user) == ("http://rabbit.example:15672", "a/b", "me")
    with Management.of(kombu.Connection("amqps://rabbit.example//")) as secure:
        assert (secure.url, secure.vhost) == ("https://rabbit.example:15671", "/")


def test_an_option_comes_before_the_environment_and_that_before_the_setting(monkeypatch):
    broker = kombu.Connection("amqp://me@rabbit.example//")
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    with Management.of(broker, setting="http://setting.example") as client:
        assert client.url == "http://setting.example"
    monkeypatch.setenv(URL_VARIABLE, "https://admin:x@proxy.example/rabbit/")
    with Management.of(broker, setting="http://setting.example") as client:
        assert (client.url, client.user) == ("https://proxy.example/rabbit", "admin")
    with Management.of(broker, "http://option.example", "http://setting.example") as client:
        assert (client.url, client.user) == ("http://option.example", "me")


@corpus("url", ["rabbit:15672", "ftp://me:hidden@rabbit", "http://", "me:hidden@rabbit"])
def test_an_address_that_is_no_url_is_refused(url):
    with pytest.raises(ManagementError, match="is no URL") as raised:
        Management(url, "/", "guest", "guest")
    assert "hidden" not in str(raised.value)


@pytest.mark.brokers
def test_the_api_shows_the_arguments_and_policy_of_a_queue(managed, managed_lab):
    name = managed_lab.queue(f"{managed_lab.names.prefix} ü/%?#", **{"x-max-length": 7})
    with Management.of(managed_lab.connection, managed.management_url) as api:
        assert tuple(map(int, api.version().split("."))) == managed.version
        detail = api.queue(name)
        assert detail == api.queues()[name]
    assert detail is not None
    assert (detail.type, detail.arguments["x-max-length"], detail.policy) == (managed_lab.queue_type, 7, None)
    assert (detail.dead_letters_waiting, detail.lasting, detail.operator_policy) == (0, True, None)


@pytest.mark.brokers
def test_a_missing_queue_is_none(api):
    assert api.queue("no such queue") is None
    assert api.consumers("no such queue") == []


@pytest.mark.brokers
def test_a_queue_that_is_not_durable_is_recognised(api, managed):
    with kombu.Connection(managed.url) as connection:
        connection.channel().queue_declare("fleeting", durable=False, exclusive=True, auto_delete=True)
        detail = wait_for(lambda: api.queue("fleeting"))
        assert not detail.lasting


@pytest.mark.brokers
def test_the_consumers_of_a_queue_are_listed_by_address(api, managed_lab):
    name = managed_lab.queue()
    managed_lab.channel.basic_consume(name)
    socket = managed_lab.connection.connection.transport.sock
    wait_for(lambda: api.consumers(name) == ["{}:{}".format(*socket.getsockname())])


@pytest.mark.brokers
def test_a_policy_is_written_read_and_deleted(api):
    def found():
        return [each for each in api.policies() if each.name == policy.name]

    policy = Policy("ours / ü", "^a\\.b$", {"max-length": 3}, 4)
    api.put_policy(policy)
    assert found() == [policy]
    api.put_policy(Policy("ours / ü", "^c$", {"max-length": 5}, 2))
    assert [each.priority for each in found()] == [2]
    api.delete_policy(policy.name)
    api.delete_policy(policy.name)
    assert found() == []


@pytest.mark.brokers
def test_a_policy_that_the_broker_refuses_is_reported_with_the_reason(api):
    with pytest.raises(ManagementError, match=r"answered 400 to PUT .*not recognised policy settings"):
        api.put_policy(Policy("bad", "x", {"nonsense": 1}))


@pytest.mark.brokers
def test_a_wrong_password_is_reported(managed):
    error = problem(Management(f"http://127.0.0.1:{managed.settings.management_port}", "/", "stranger", "x"))
    assert "does not let user 'stranger' in (401: " in error
    assert "Check name and password" in error


@pytest.mark.brokers
def test_credentials_in_the_url_are_decoded_and_the_error_for_a_missing_tag_names_it(user):
    with Management(user("monitoring"), "/", "guest", "wrong") as client:
        assert client.version()
        assert isinstance(client.queues(), dict)
    url = user("")
    assert "set_user_tags" in problem(Management(url, "/", "", ""))
    assert "monitoring" in problem(Management(url, "/", "", ""), Management.queues)


@pytest.mark.brokers
def test_the_error_for_a_user_who_may_not_write_policies_names_the_tag(user):
    url = user("monitoring")
    for call in (lambda api: api.put_policy(Policy("p", "x", {"expires": 1000})), lambda api: api.delete_policy("p")):
        error = problem(Management(url, "/", "", ""), call)
        assert "write policies (401: " in error
        assert "policymaker" in error
    with Management(user("policymaker"), "/", "", "") as client:
        client.put_policy(Policy("p", "x", {"expires": 1000}))
        client.delete_policy("p")


@pytest.mark.brokers
def test_a_user_without_permissions_on_the_vhost_gets_an_error(user):
    error = problem(Management(user("policymaker", vhost=None), "/", "", ""), Management.policies)
    assert "see the vhost '/'" in error or "the vhost '/', or hides it from user" in error  # since RabbitMQ 4.3: 404
    assert "set_permissions" in error


def vhosts(broker):
    with httpx.Client(base_url=f"{broker.management_url}/api/") as http:
        return [each["name"] for each in http.get("vhosts").raise_for_status().json()]


@pytest.mark.brokers
def test_a_vhost_for_a_test_is_open_to_a_user_who_may_not_create_any(managed, user):
    _, credentials, _ = re.split(r"//|@", user("", vhost=None))
    url = f"amqp://{credentials}@127.0.0.1:{managed.port}"
    broker = ExternalBroker(f"{url}//;{url}/other", managed.management_url)
    inside = broker.vhost("a vhost/of a test")
    assert inside == f"{url}/a%20vhost%2Fof%20a%20test;{url}/a%20vhost%2Fof%20a%20test"
    with kombu.Connection(inside) as connection:
        connection.channel().queue_declare("shop", auto_delete=False)
    assert "a vhost/of a test" in vhosts(managed)
    broker.delete_vhost("a vhost/of a test")
    broker.delete_vhost("a vhost/of a test")
    assert "a vhost/of a test" not in vhosts(managed)


@pytest.mark.brokers
def test_the_reason_why_no_vhost_is_created_is_reported(managed, user):
    for api, expected in (
        (f"http://stranger:x@127.0.0.1:{managed.settings.management_port}", "Check name and password"),
        (user("monitoring"), "create and delete vhosts (401: Not administrator user). Give it the tag administrator"),
    ):
        with pytest.raises(ManagementError, match=re.escape(expected)):
            ExternalBroker(managed.url, api).vhost("unwanted")


@pytest.mark.brokers
def test_a_vhost_that_its_user_cannot_be_given_is_deleted_again(managed):
    broker = ExternalBroker(managed.url.replace("guest:guest", "absent:x"), managed.management_url)
    with pytest.raises(ManagementError, match="400 to PUT permissions"):
        broker.vhost("unwanted")
    assert "unwanted" not in vhosts(managed)


@pytest.mark.brokers
@pytest.mark.parametrize("call", [Management.queues, Management.policies, lambda api: api.queue("q")])
def test_an_unknown_vhost_is_distinguished_from_a_missing_api(managed, call):
    error = problem(Management(str(managed.management_url), "no/such", "guest", "guest"), call)
    assert "does not know the vhost 'no/such'" in error
    error = problem(Management(f"{managed.management_url}/elsewhere", "/", "guest", "guest"), call)
    assert "serves HTTP, but no management API there" in error


def test_an_address_without_the_api_is_reported_with_the_command_that_enables_it(managed):
    error = problem(Management(f"http://127.0.0.1:{free_port()}", "/", "guest", "guest"))
    for words in ("No management API", "refused", "rabbitmq-plugins enable rabbitmq_management", URL_VARIABLE):
        assert words in error
    unknown = "http://no.such.invalid:15672"
    assert f"No management API at {unknown}" in problem(Management(unknown, "/", "guest", "guest"))
    amqp_port = problem(Management(f"http://127.0.0.1:{managed.port}", "/", "guest", "guest"))
    assert "does not answer in HTTP" in amqp_port


@dataclass
class Answer:
    status: int = 200
    body: bytes = b"<html>welcome</html>"
    location: str | None = None


@pytest.fixture
def other_server():
    """Serve one answer to everything; return the URL."""
    servers: list[HTTPServer] = []

    def serve(answer):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(answer.status)
                if answer.location:
                    self.send_header("Location", answer.location)
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(), "not as a RabbitMQ management API"),
        (Answer(body=b"{}"), "not as a RabbitMQ management API"),
        (Answer(status=404), "serves HTTP, but no management API"),
        (Answer(status=502), "answered 502"),
        (Answer(status=302, location="http://me:s%20e@elsewhere"), "answered 302"),
        (Answer(status=403), "does not let user 'guest' in (403)"),
    ],
)
def test_an_address_of_another_server_is_reported(other_server, answer, error):
    assert error in problem(Management(other_server(answer), "/", "guest", "guest"))


def test_an_answer_that_does_not_come_in_time_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Management(f"http://127.0.0.1:{silent.getsockname()[1]}", "/", "guest", "guest", timeout=0.2)
        started = time.monotonic()
        assert "did not answer within 0.2 s" in problem(client)
        assert time.monotonic() - started < BUSY


@dataclass
class Tls:
    url: str
    authority: Path
    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def tls(rmq_installation, tmp_path_factory):
    """A management API with TLS that requires client certificates."""
    folder = tmp_path_factory.mktemp("tls")
    if rmq_installation.root is not None:
        folder = rmq_installation.root / "tmp" / f"tls-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
    authority = trustme.CA()
    server, client = authority.issue_cert("localhost"), authority.issue_cert("client")
    for name, blob in (
        ("ca", authority.cert_pem),
        ("cert", server.cert_chain_pems[0]),
        ("key", server.private_key_pem),
        ("client", client.cert_chain_pems[0]),
        ("client-key", client.private_key_pem),
    ):
        blob.write_to_path(str(folder / f"{name}.pem"))
        (folder / f"{name}.pem").chmod(0o644)
    inside = f"/tmp/{folder.name}" if rmq_installation.root is not None else str(folder)
    port = free_port()
    config = "\n".join(
        (
            "management.ssl.ip = 127.0.0.1",
            f"management.ssl.port = {port}",
            f"management.ssl.cacertfile = {inside}/ca.pem",
            f"management.ssl.certfile = {inside}/cert.pem",
            f"management.ssl.keyfile = {inside}/key.pem",
            "management.ssl.verify = verify_peer",
            "management.ssl.fail_if_no_peer_cert = true",
        )
    )
    plugins = ["rabbitmq_management"]
    with PrivateBroker(rmq_installation.server, rmq_installation.root, plugins=plugins, config=config):
        yield Tls(f"https://localhost:{port}", folder / "ca.pem", folder / "client.pem", folder / "client-key.pem")


def tls_client(tls, **options):
    return Management(tls.url, "/", "guest", "guest", tls=options)


def ready(tls):
    """Wait for the API, which starts a little after the broker."""
    host, port = tls.url.removeprefix("https://").split(":")

    def listens():
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    wait_for(listens)


@pytest.mark.slow
def test_the_certificates_of_the_broker_connection_are_used(tls):
    ready(tls)
    certificate, key = str(tls.certificate), str(tls.key)
    with tls_client(tls, ca_certs=str(tls.authority), certfile=certificate, keyfile=key) as client:
        assert client.version()
    query = {"ssl_ca_certs": str(tls.authority), "ssl_certfile": certificate, "ssl_keyfile": key}
    with tls_client(tls, **query) as client:  # as in a broker URL
        assert client.version()
    with tls_client(tls, cert_reqs=ssl.CERT_NONE, certfile=certificate, keyfile=key) as client:
        assert client.version()


@pytest.mark.slow
def test_an_unknown_certificate_authority_is_refused_with_the_fix(tls):
    ready(tls)
    error = problem(Management(tls.url, "/", "guest", "guest", tls=True))
    assert "No TLS connection" in error
    assert "broker_use_ssl={'ca_certs': ...}" in error


def test_another_host_name_than_the_certificates_is_refused(tls):
    ready(tls)
    url = tls.url.replace("localhost", "127.0.0.1")
    assert "No TLS connection" in problem(
        Management(url, "/", "guest", "guest", tls={"ca_certs": str(tls.authority), "certfile": str(tls.certificate),
                                                    "keyfile": str(tls.key)})
    )  # fmt: skip


def test_a_missing_client_certificate_is_reported(tls):
    ready(tls)
    error = problem(tls_client(tls, ca_certs=str(tls.authority)))
    assert "TLS" in error or "does not answer in HTTP" in error or "No management API" in error


def test_https_on_a_port_without_tls_is_reported(managed):
    url = f"https://127.0.0.1:{managed.settings.management_port}"
    assert "or write http://" in problem(Management(url, "/", "guest", "guest"))


def test_http_on_a_port_with_tls_is_reported(tls):
    ready(tls)
    error = problem(Management(tls.url.replace("https", "http"), "/", "guest", "guest"))
    assert "https" in error or "answered 4" in error


def test_certificates_that_cannot_be_read_are_reported(tls):
    with pytest.raises(ManagementError, match="certificates in broker_use_ssl cannot be used"):
        tls_client(tls, ca_certs="/no/such/file.pem")
