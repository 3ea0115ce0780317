"""Requests of a migration to the management API."""

import pytest
from kombu.transport.native_delayed_delivery import calculate_routing_key

from celery_rmq_delay.exceptions import TopologyError
from celery_rmq_delay.management.client import Management
from celery_rmq_delay.operations.celery_native_delay import find_leftovers, level, remove
from tests.support.waiting import wait_for

pytestmark = pytest.mark.brokers


@pytest.fixture
def rmq_vhost(managed_vhost):
    """The vhost is on the broker with the management plugin."""
    return managed_vhost


@pytest.fixture
def movers(managed, make_movers):
    return make_movers(exact_for="all", management_url=managed.management_url)


def test_the_queues_of_hold_are_listed(movers, managed):
    more = {"exact_for": "all", "management_url": managed.management_url}
    movers.again(exact_delays="hold", **more)
    movers.call(50, 5000)
    movers.again(**more)
    report = movers.migrate("hold")
    assert (report.before, report.moved, report.after) == (2, {"orders": 2}, 0)


def test_unroutable_dead_letters_keep_celerys_levels_and_empty_levels_are_removed(movers):
    movers.declare_celery_native()
    movers.put(calculate_routing_key(1, "unknown"), b"x", exchange="celery_delayed_27")

    def stuck():
        with Management.of(movers.connection, None, movers.delay.settings.management_url) as management:
            found = management.queues()
        return found[level(0)].dead_letters_waiting if level(0) in found else 0

    wait_for(lambda: stuck() == 1, "a dead letter that no queue takes", pause=0.2)
    with pytest.raises(TopologyError, match=r"dead letters that no queue takes in celery_delayed_0 \(1\)"):
        movers.migrate("celery-native", remove=True)
    assert find_leftovers(movers.connection) is not None

    movers.connection.channel().queue_delete(level(0))
    assert len(movers.migrate("celery-native", remove=True).removed) == 27 + 29
    assert remove(movers.connection, movers.app, {}) == []
