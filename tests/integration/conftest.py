"""Fixtures of the tests on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_rmq_delay import adoption
from celery_rmq_delay.broker import Capabilities
from celery_rmq_delay.config import QueueType
from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.testing.installation import Installation

from .lab import Lab

#: The management API shows statistics that are up to ten seconds old; here, up to one.
STATISTICS = "\n".join(
    [
        "collect_statistics_interval = 200",
        *(f"management.sample_retention_policies.{kind}.minute = 1" for kind in ("global", "basic", "detailed")),
    ]
)


@pytest.fixture(params=["classic", "quorum"])
def queue_type(request: pytest.FixtureRequest) -> QueueType:
    kind: QueueType = request.param
    return kind


@pytest.fixture
def lab(rmq_broker: Any, queue_type: QueueType) -> Iterator[Lab]:
    lab = Lab(rmq_broker.url, queue_type)
    yield lab
    lab.close()


@pytest.fixture
def classic_lab(rmq_broker: Any) -> Iterator[Lab]:
    lab = Lab(rmq_broker.url, "classic")
    yield lab
    lab.close()


@pytest.fixture
def native_lab(quorum_lab: Lab) -> Lab:
    """A lab on a broker whose quorum queues can hold what is given back to them."""
    if not Capabilities(quorum_lab.version).delays_retries:
        pytest.skip("RabbitMQ before 4.3.1 has no delayed retry")
    return quorum_lab


@pytest.fixture
def quorum_lab(rmq_broker: Any) -> Iterator[Lab]:
    lab = Lab(rmq_broker.url, "quorum")
    yield lab
    lab.close()


@pytest.fixture(scope="session")
def managed(rmq_installation: Installation) -> Iterator[PrivateBroker]:
    """A broker with the management plugin, whose statistics are young."""
    with PrivateBroker(rmq_installation.server, rmq_installation.root, management=True, config=STATISTICS) as broker:
        broker.evaluate("application:set_env(rabbit, quorum_tick_interval, 200)")
        yield broker


@pytest.fixture(params=["classic", "quorum"])
def managed_lab(managed: PrivateBroker, request: pytest.FixtureRequest) -> Iterator[Lab]:
    lab = Lab(managed.url, request.param)
    yield lab
    lab.close()


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> adoption.Patience:
    """Adopt and give back without the waiting that old statistics need."""
    quick = adoption.Patience(effect=10, answers=1, round=0.2, settle=0.1, settle_quorum=0.5, pause=0.05)
    monkeypatch.setattr(adoption, "PATIENCE", quick)
    return quick
