"""Pytest fixtures: a ladder in memory, and a private RabbitMQ.

The package registers them with pytest, which loads this module in every run: fixtures import heavy modules when they
are used.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NoReturn, TypeVar

import pytest

if TYPE_CHECKING:
    from celery import Celery

    from .clock import LadderClock
    from .memory import MemoryLadder
    from .servers.broker import PrivateBroker
    from .servers.external import ExternalBroker
    from .servers.installation import Installation
    from .servers.process import PrivateServer
    from .worker import BrokerLadder

    Server = TypeVar("Server", bound=PrivateServer)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose the broker."""
    group = parser.getgroup("rabbitmq", "RabbitMQ for tests")
    group.addoption(
        "--rabbitmq",
        default=None,
        metavar="SERVER",
        help="RabbitMQ to start: system (default), or the path of a rabbitmq-server or of a chroot tree",
    )
    group.addoption(
        "--broker-url",
        default=None,
        metavar="URL",
        help="use this broker and start none (default without --rabbitmq: the environment variable BROKER_URL)",
    )
    group.addoption(
        "--management-url",
        default=None,
        metavar="URL",
        help="management API of that broker, which creates a vhost for each test (default: the environment variable "
        "RMQ_DELAY_MANAGEMENT_URL, else its default port on the broker's host)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse conflicting options, and prepare the shared servers."""
    if config.getoption("--rabbitmq") and config.getoption("--broker-url"):
        raise pytest.UsageError("--rabbitmq starts a broker and --broker-url uses a running one: use only one of them.")
    config.stash[_SHARED] = _Shared()


class _Shared:
    """The private servers that the tests of a run share, and the reports of those that ended."""

    def __init__(self) -> None:
        self.servers: list[PrivateServer] = []
        self.losses: dict[PrivateServer, list[str]] = {}
        self.test = "the start"

    def revive(self) -> None:
        for server in self.servers:
            if loss := server.revive():
                self.losses.setdefault(server, []).append(f"{loss} It was during, or right after, {self.test}.")


_SHARED = pytest.StashKey[_Shared]()


@contextmanager
def shared(config: pytest.Config, server: Server) -> Iterator[Server]:
    """Run a private server for many tests; if it ends, it is started again for the next test.

    A server that ended unexpectedly is reported once, as an error of the fixture that holds this block.
    """
    found = config.stash[_SHARED]
    with server:
        found.servers.append(server)
        try:
            yield server
        finally:
            found.revive()
            found.servers.remove(server)
    if losses := found.losses.pop(server, None):
        _fail("\n".join(losses))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start ended servers again."""
    shared = item.config.stash[_SHARED]
    shared.revive()
    shared.test = item.nodeid


@pytest.fixture(scope="session")
def rmq_installation(pytestconfig: pytest.Config) -> Installation:
    """The RabbitMQ installation that ``--rabbitmq`` chose, for tests that start their own nodes."""
    from ..exceptions import ServerNotFoundError
    from .servers.installation import Installation

    try:
        return Installation.named(pytestconfig.getoption("--rabbitmq") or "system")
    except ServerNotFoundError as error:
        skip_or_fail(error)


def external_broker(config: pytest.Config) -> str | None:
    """Return the URL of the broker that the tests of a run use instead of a private one."""
    found: str | None = config.getoption("--broker-url")
    return found or (None if config.getoption("--rabbitmq") else os.environ.get("BROKER_URL"))


@pytest.fixture(scope="session")
def rmq_broker(request: pytest.FixtureRequest) -> Iterator[PrivateBroker | ExternalBroker]:
    """A RabbitMQ for the whole test run; has ``url``. Without an external broker it is a ``PrivateBroker``."""
    from .servers.broker import PrivateBroker
    from .servers.external import ExternalBroker

    if external := external_broker(request.config):
        yield ExternalBroker(external, request.config.getoption("--management-url"))
        return
    installation = request.getfixturevalue("rmq_installation")
    with shared(request.config, PrivateBroker(installation.server, installation.root)) as broker:
        yield broker


@pytest.fixture
def rmq_vhost(request: pytest.FixtureRequest, rmq_broker: PrivateBroker | ExternalBroker) -> Iterator[str]:
    """The URL of a fresh vhost, deleted after the test."""
    from ..exceptions import ManagementError

    name = f"rmq-delay-test-{uuid.uuid4().hex[:12]}"
    try:
        url = rmq_broker.vhost(name)
    except ManagementError as error:
        _fail(
            f"A test on a running broker needs a vhost of its own, which the management API creates. {error}\n"
            "Without BROKER_URL and --broker-url a private broker is started, which needs no API."
        )
    yield url
    request.config.stash[_SHARED].revive()
    rmq_broker.delete_vhost(name)


@pytest.fixture
def rmq_ladder() -> Iterator[Callable[[Celery], MemoryLadder]]:
    """A function that runs an app in memory for a test: ``ladder = rmq_ladder(app)``. Needs no server."""
    from .memory import MemoryLadder

    with ExitStack() as stack:
        yield lambda app: stack.enter_context(MemoryLadder(app))


@pytest.fixture
def rmq_worker(rmq_vhost: str) -> Iterator[Callable[..., BrokerLadder]]:
    """A function that starts a worker of an app on ``rmq_vhost`` until the end of the test: ``rmq_worker(app)``.

    It takes the options of `BrokerLadder`.
    """
    from .worker import BrokerLadder

    with ExitStack() as stack:
        yield lambda app, **options: stack.enter_context(BrokerLadder(app, rmq_vhost, **options))


@pytest.fixture
def rmq_clock() -> Iterator[Callable[..., LadderClock]]:
    """A function that shortens an app's delays until the end of the test: ``rmq_clock(app, longest="0.2s")``.

    It takes the options of `LadderClock`.
    """
    from .clock import LadderClock

    with ExitStack() as stack:
        yield lambda app, **options: stack.enter_context(LadderClock(app, **options))


def skip_or_fail(reason: object) -> NoReturn:
    """Skip the test, or fail it in CI, where a skip would hide untested code."""
    if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
        _fail(f"{reason} (CI is set, so the test fails and is not skipped.)")
    pytest.skip(str(reason))


def _fail(reason: str) -> NoReturn:
    """Fail the test with nothing but the reason: neither a traceback nor the exception that is being handled."""
    raise pytest.fail.Exception(reason, pytrace=False) from None
