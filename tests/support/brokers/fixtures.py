"""Fixtures of tests on a real broker, with or without worker processes: a pytest plugin."""

import uuid
from collections.abc import Iterator

import pytest

from celery_rmq_delay.ladders import QueueType
from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.testing.plugin import external_broker, shared
from celery_rmq_delay.testing.servers.installation import Installation
from tests.support.brokers.kinds import QUEUE_TYPES
from tests.support.servers.postgres import PrivatePostgres

#: The management API shows statistics that are up to ten seconds old; here, up to one.
STATISTICS = "\n".join(
    f"management.sample_retention_policies.{kind}.minute = 1" for kind in ("global", "basic", "detailed")
)
#: The same for the reports of queues and channels, set when the node has started: in rabbitmq.conf it would also be the
#: interval of the node's own statistics. In 3.10 these end when they are read while a tool, as `PrivateBroker.evaluate`
#: starts one, and a client are connected from the same port number, to different ports of the node; the management
#: API's end with them, which then answers 500 until the node's restart.
INTERVALS = (
    "application:set_env(rabbit, collect_statistics_interval, 200), "
    "application:set_env(rabbit, quorum_tick_interval, 200)"
)


@pytest.fixture(params=QUEUE_TYPES)
def queue_type(request: pytest.FixtureRequest) -> QueueType:
    kind: QueueType = request.param
    return kind


@pytest.fixture(scope="session")
def own_broker(rmq_broker: object) -> PrivateBroker:
    """The private broker of the test run, which tests may change; with an external one, the test is skipped."""
    if not isinstance(rmq_broker, PrivateBroker):
        pytest.skip("the test changes the broker, and this one is external")
    return rmq_broker


@pytest.fixture(scope="session")
def own_postgres(rmq_postgres: object) -> PrivatePostgres:
    """The PostgreSQL of the test run, in the same way."""
    if not isinstance(rmq_postgres, PrivatePostgres):
        pytest.skip("the test stops the server, and POSTGRES_URL names an external one")
    return rmq_postgres


@pytest.fixture(scope="session")
def managed(request: pytest.FixtureRequest) -> Iterator[PrivateBroker]:
    """A broker with the management plugin, whose statistics are young; with an external one, the test is skipped."""
    if external_broker(request.config):
        pytest.skip("the test needs a broker with other settings, and this one is external")
    installation: Installation = request.getfixturevalue("rmq_installation")
    broker = PrivateBroker(installation.server, installation.root, management=True, config=STATISTICS)
    with shared(request.config, broker):
        broker.evaluate(INTERVALS)
        yield broker


@pytest.fixture
def managed_vhost(managed: PrivateBroker) -> Iterator[str]:
    """The URL of a vhost of its own on the broker with the management plugin."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield managed.vhost(name)
    managed.delete_vhost(name)
