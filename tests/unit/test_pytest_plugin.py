"""The fixtures' behaviour when a server is missing or external."""

import socket
import sys

import httpcore  # noqa: F401 - here, as a run of pytest in this process drops the modules that it imports
import httpx  # noqa: F401
import pytest

from celery_rmq_delay.exceptions import ManagementError
from celery_rmq_delay.management.client import URL_VARIABLE
from celery_rmq_delay.testing.servers.external import ExternalBroker, _in_vhost
from celery_rmq_delay.testing.servers.host import free_port
from tests.support.corpus import corpus

pytest_plugins = ["pytester"]

USES_BROKER = "def test_it(rmq_broker):\n    assert rmq_broker.url == 'amqp://elsewhere//'\n"
USES_VHOST = "def test_it(rmq_vhost): pass\n\ndef test_it_again(rmq_vhost): pass\n"


@pytest.fixture(autouse=True)
def without_servers(monkeypatch):
    for name in ("BROKER_URL", "REDIS_URL", URL_VARIABLE, "CI", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)


def run(pytester, *arguments, code=USES_BROKER):
    pytester.makepyfile(code)
    others = [part for name in ("cacheprovider", "celery", "django", "ddtrace") for part in ("-p", f"no:{name}")]
    return pytester.runpytest_inprocess(*others, *arguments)


def test_a_missing_server_skips_on_a_developers_machine_and_fails_in_ci(pytester, monkeypatch):
    run(pytester, "--rabbitmq", "/no/such/server").assert_outcomes(skipped=1)
    monkeypatch.setenv("CI", "true")
    result = run(pytester, "--rabbitmq", "/no/such/server")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*CI is set*"])
    result.stdout.no_fnmatch_line("*exception*")


def test_a_broker_given_by_url_or_environment_is_used_unchanged_unless_another_is_chosen(pytester, monkeypatch):
    run(pytester, "--broker-url", "amqp://elsewhere//").assert_outcomes(passed=1)
    monkeypatch.setenv("BROKER_URL", "amqp://elsewhere//")
    run(pytester).assert_outcomes(passed=1)
    run(pytester, "--rabbitmq", "/no/such/server").assert_outcomes(skipped=1)


def test_two_brokers_at_once_are_refused(pytester):
    result = run(pytester, "--rabbitmq", "system", "--broker-url", "amqp://elsewhere//")
    result.stderr.fnmatch_lines(["*use only one of them*"])


def refused(result, *reasons):
    """Check that both tests fail with these reasons and a way out, and without a traceback."""
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*needs a vhost of its own*", "Without BROKER_URL and --broker-url a private broker*"])
    result.stdout.no_fnmatch_line("*exception*")
    for reason in reasons:
        assert reason in result.stdout.str()


@pytest.fixture
def listening():
    """The URL of something that accepts connections, as a broker does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"amqp://127.0.0.1:{server.getsockname()[1]}//"


def test_a_broker_without_management_api_fails_a_test_with_what_to_do(pytester, monkeypatch, listening):
    api = f"http://127.0.0.1:{free_port()}"
    result = run(pytester, "--broker-url", listening, "--management-url", api, code=USES_VHOST)
    refused(result, f"No management API at {api}", "rabbitmq-plugins enable rabbitmq_management", URL_VARIABLE)
    monkeypatch.setenv("BROKER_URL", listening)
    monkeypatch.setenv(URL_VARIABLE, api)
    refused(run(pytester, code=USES_VHOST), f"No management API at {api}")


def test_a_broker_that_does_not_run_is_not_taken_for_one_without_management_api(pytester):
    port, api = free_port(), f"http://127.0.0.1:{free_port()}"
    urls = ("--broker-url", f"amqp://me:secret@127.0.0.1:{port}//", "--management-url", api)
    result = run(pytester, *urls, code=USES_VHOST)
    refused(result, f"No RabbitMQ at 127.0.0.1:{port} (", "Start it, or correct the URL.")
    result.stdout.no_fnmatch_line("*secret*")
    result.stdout.no_fnmatch_line("*management API at*")


def test_a_vhost_in_a_running_broker_names_the_extra_that_it_needs(pytester, monkeypatch, listening):
    monkeypatch.setitem(sys.modules, "httpx", None)
    result = run(pytester, "--broker-url", listening, code=USES_VHOST)
    refused(result, "pip install 'celery-rmq-delay[management]'")


def test_a_broker_url_that_is_not_of_rabbitmq_is_refused(pytester):
    result = run(pytester, "--broker-url", "redis://me:secret@elsewhere/0", code=USES_VHOST)
    refused(result, "'redis://elsewhere/0' is no URL of RabbitMQ")
    result.stdout.no_fnmatch_line("*secret*")


@corpus(
    "url, inside",
    [
        ("amqp://", "amqp://localhost/a%2Fb"),
        ("amqp://guest:guest@localhost//", "amqp://guest:guest@localhost/a%2Fb"),
        ("amqps://me:p%2Fx@rabbit:5671/shop?heartbeat=3", "amqps://me:p%2Fx@rabbit:5671/a%2Fb?heartbeat=3"),
        ("pyamqp://rabbit", "pyamqp://rabbit/a%2Fb"),
    ],
)
def test_a_vhost_replaces_that_of_the_url(url, inside):
    assert _in_vhost(url, "a/b") == inside


def test_a_refusal_of_a_vhost_is_not_waited_for_again(monkeypatch):
    broker = ExternalBroker(f"amqp://127.0.0.1:{free_port()}//", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ManagementError):
        broker.vhost("first")
    monkeypatch.setattr(broker, "_create", None)
    with pytest.raises(ManagementError, match="No RabbitMQ"):
        broker.vhost("second")
