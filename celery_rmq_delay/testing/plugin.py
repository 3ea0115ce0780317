"""Pytest fixtures: a ladder in memory, and a RabbitMQ, a Redis and a PostgreSQL of the tests' own.

Installed with the package, so that they are there without an import. pytest loads this module in every run: what is
heavy is imported in the fixtures.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

import pytest

if TYPE_CHECKING:
    from celery import Celery

    from .clock import LadderClock
    from .memory import MemoryLadder
    from .servers.broker import PrivateBroker
    from .servers.context import PrivateServer
    from .servers.installation import Installation
    from .servers.postgres import PrivatePostgres
    from .servers.redis import PrivateRedis
    from .worker import BrokerLadder

    Server = TypeVar("Server", bound=PrivateServer)


@dataclass(frozen=True)
class ExternalServer:
    """A server that was given by its URL and is neither started nor stopped."""

    url: str


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


def pytest_configure(config: pytest.Config) -> None:
    """Refuse two brokers at once, and get ready for the servers that tests share."""
    if config.getoption("--rabbitmq") and config.getoption("--broker-url"):
        raise pytest.UsageError("--rabbitmq starts a broker and --broker-url uses one that runs: give one of the two.")
    config.stash[_SHARED] = _Shared()


class _Shared:
    """The private servers that the tests of a run share, and what became of them."""

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
    """Run a private server for many tests; one that ends is there again for the next test.

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
        pytest.fail("\n".join(losses), pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the servers again that have ended."""
    shared = item.config.stash[_SHARED]
    shared.revive()
    shared.test = item.nodeid


@pytest.fixture(scope="session")
def rmq_installation(pytestconfig: pytest.Config) -> Installation:
    """The RabbitMQ installation that ``--rabbitmq`` chose, for tests that start nodes of their own."""
    from ..exceptions import ServerNotFoundError
    from .servers.installation import Installation

    try:
        return Installation.named(pytestconfig.getoption("--rabbitmq") or "system")
    except ServerNotFoundError as error:
        skip_or_fail(error)


@pytest.fixture(scope="session")
def rmq_broker(request: pytest.FixtureRequest) -> Iterator[PrivateBroker | ExternalServer]:
    """A RabbitMQ for the whole test run; has ``url``. Started by us it is a ``PrivateBroker``."""
    chosen = request.config.getoption("--rabbitmq")
    external = request.config.getoption("--broker-url") or (None if chosen else os.environ.get("BROKER_URL"))
    if external:
        yield ExternalServer(external)
        return
    from .servers.broker import PrivateBroker

    installation = request.getfixturevalue("rmq_installation")
    with shared(request.config, PrivateBroker(installation.server, installation.root)) as broker:
        yield broker


@pytest.fixture
def rmq_vhost(request: pytest.FixtureRequest, rmq_broker: PrivateBroker | ExternalServer) -> Iterator[str]:
    """The URL of a fresh vhost, deleted after the test; on an external broker the URL as it was given."""
    if isinstance(rmq_broker, ExternalServer):
        yield rmq_broker.url
        return
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield rmq_broker.vhost(name)
    request.config.stash[_SHARED].revive()
    rmq_broker.delete_vhost(name)


@pytest.fixture(scope="session")
def rmq_redis(pytestconfig: pytest.Config) -> Iterator[PrivateRedis | ExternalServer]:
    """A Redis for the whole test run; has ``url``. The environment variable REDIS_URL names another one."""
    if external := os.environ.get("REDIS_URL"):
        yield ExternalServer(external)
        return
    from ..exceptions import ServerNotFoundError
    from .servers.redis import PrivateRedis

    try:
        redis = PrivateRedis()
    except ServerNotFoundError as error:
        skip_or_fail(error)
    with shared(pytestconfig, redis):
        yield redis


@pytest.fixture(scope="session")
def rmq_postgres(pytestconfig: pytest.Config) -> Iterator[PrivatePostgres | ExternalServer]:
    """A PostgreSQL for the whole test run; has ``url``. The environment variable POSTGRES_URL names another one."""
    if external := os.environ.get("POSTGRES_URL"):
        yield ExternalServer(external)
        return
    from ..exceptions import ServerNotFoundError
    from .servers.postgres import PrivatePostgres

    try:
        postgres = PrivatePostgres()
    except ServerNotFoundError as error:
        skip_or_fail(error)
    with shared(pytestconfig, postgres):
        yield postgres


@pytest.fixture
def rmq_ladder() -> Iterator[Callable[[Celery], MemoryLadder]]:
    """A function that takes an app over until the end of the test: ``ladder = rmq_ladder(app)``. Needs no server."""
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
    """A function that makes an app's delays short until the end of the test: ``rmq_clock(app, longest="0.2s")``.

    It takes the options of `LadderClock`.
    """
    from .clock import LadderClock

    with ExitStack() as stack:
        yield lambda app, **options: stack.enter_context(LadderClock(app, **options))


def skip_or_fail(reason: object) -> NoReturn:
    """Skip on a developer's machine, fail where a missing server would hide untested code."""
    if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
        pytest.fail(f"{reason} (CI is set, so this is a failure and not a skip.)", pytrace=False)
    pytest.skip(str(reason))
