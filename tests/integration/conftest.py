"""Fixtures of the tests on a real broker."""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from celery_rmq_delay.amqp.capabilities import Capabilities
from celery_rmq_delay.operations import adoption
from tests.support.brokers.lab import Lab
from tests.support.brokers.movers import Movers
from tests.support.brokers.proxy import Proxy
from tests.support.waiting import BUSY

if TYPE_CHECKING:
    pass


@pytest.fixture
def lab(rmq_broker, queue_type):
    lab = Lab(rmq_broker.url, queue_type)
    yield lab
    lab.close()


@pytest.fixture
def classic_lab(rmq_broker):
    lab = Lab(rmq_broker.url, "classic")
    yield lab
    lab.close()


@pytest.fixture
def proxy(rmq_broker):
    """A proxy before the broker of the labs."""
    with Proxy(urlsplit(rmq_broker.url).port or 5672) as proxy:
        yield proxy


@pytest.fixture
def native_retry_lab(quorum_lab):
    """A lab on a broker whose quorum queues can hold requeued messages."""
    if not Capabilities(quorum_lab.version).delays_retries:
        pytest.skip("RabbitMQ before 4.3.1 has no delayed retry")
    return quorum_lab


@pytest.fixture
def quorum_lab(rmq_broker):
    lab = Lab(rmq_broker.url, "quorum")
    yield lab
    lab.close()


@pytest.fixture
def managed_lab(managed, queue_type):
    lab = Lab(managed.url, queue_type)
    yield lab
    lab.close()


@pytest.fixture
def patience(monkeypatch):
    """Adopt and detach without waiting for old statistics."""
    quick = adoption.Patience(effect=BUSY, answers=1, round=0.2, settle=0.1, settle_quorum=0.5, pause=0.05)
    monkeypatch.setattr(adoption, "PATIENCE", quick)
    return quick


@pytest.fixture
def make_movers(rmq_vhost):
    """Make apps with messages to migrate, all on one vhost."""
    made: list[Movers] = []

    def make(kind="quorum", **settings):
        made.append(Movers(rmq_vhost, kind, **settings))
        return made[-1]

    yield make
    for movers in made:
        movers.close()


@pytest.fixture
def movers(make_movers):
    """An app with messages to migrate, which uses no native delayed delivery of Celery."""
    return make_movers(exact_for="all")


@pytest.fixture
def rig(rmq_vhost, database):
    from tests.support.django.collecting import Rig  # needs the settings of Django

    rig = Rig(rmq_vhost, database.environ)
    yield rig
    rig.close()
