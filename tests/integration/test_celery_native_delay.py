"""Leftovers of Celery's native delayed delivery."""

from typing import Any

import pytest

from celery_rmq_delay.exceptions import TopologyError
from celery_rmq_delay.management.records import QueueDetail
from celery_rmq_delay.operations.celery_native_delay import (
    Leftovers,
    added_bindings,
    describe,
    find_leftovers,
    level,
    level_names,
    remove,
)
from celery_rmq_delay.operations.doctor import examine


def finding(movers):
    found = examine(movers.app, use_management=False)
    return next((each for each in found if each.code == "celery-native"), None)


@pytest.mark.brokers
def test_the_doctor_reports_messages_then_empty_queues_and_otherwise_nothing(movers):
    assert find_leftovers(movers.connection) is None
    assert finding(movers) is None
    movers.declare_celery_native()
    movers.call_celery_native(5000, 600)
    movers.holds(2, *level_names())
    found = finding(movers)
    assert found is not None
    assert (found.severity, "28 queues with 2 messages" in found.found) == ("warning", True)
    assert "migrate --from celery-native`" in found.fix
    movers.migrate("celery-native")
    found = finding(movers)
    assert found is not None
    assert (found.severity, "with 0 messages" in found.found) == ("note", True)
    assert "migrate --from celery-native --remove`" in found.fix


def test_queues_that_are_still_used_are_no_leftover(make_movers):
    movers = make_movers()
    movers.declare_celery_native()
    found = finding(movers)
    assert found is not None
    assert (found.severity, "keeps 28 queues" in found.found) == ("note", True)
    assert "exact_for to 'all'" in found.fix


def test_a_level_that_is_gone_is_not_counted():
    assert "3 messages" in describe(Leftovers({"a": 1, "b": 2}), used=False)[0]


def test_bindings_that_celery_made_are_undone_and_the_users_own_stay(movers):
    movers.declare_celery_native()
    bound = {("orders", "shop", "#.orders.key"), ("mails", "shop", "#.mails.key")}
    assert set(added_bindings(movers.app)) == bound
    remove(movers.connection, movers.app, {})
    channel = movers.connection.channel()
    queue = movers.lab.queue()
    channel.queue_bind(queue, "shop", "#")
    movers.put("1.0.orders.key", b"by the binding that is gone", exchange="shop")
    movers.put("orders.key", b"by the user's own", exchange="shop")
    assert movers.lab.get("orders", ack=True).body == b"by the user's own"
    assert movers.count("orders") == 0


@pytest.mark.brokers
def test_a_waiting_message_keeps_all_levels_and_an_interrupted_removal_goes_on(movers):
    movers.declare_celery_native()
    movers.call_celery_native(5000)
    movers.holds(1, *level_names())
    with pytest.raises(TopologyError, match=r"messages in celery_delayed_12 \(1\)"):
        remove(movers.connection, movers.app, {})
    assert movers.count_celery_native() == 1
    channel = movers.connection.channel()
    channel.queue_purge(level(12))
    details = {level(0): QueueDetail(level(0), "quorum", {}, None, {}, 3)}
    with pytest.raises(TopologyError, match=r"dead letters that no queue takes in celery_delayed_0 \(3\)"):
        remove(movers.connection, movers.app, details)
    assert find_leftovers(movers.connection) is not None

    channel.exchange_delete(level(27))
    channel.queue_delete(level(20))
    assert len(remove(movers.connection, movers.app, {})) == 27 + 28
    assert find_leftovers(movers.connection) is None


@pytest.mark.brokers
def test_a_level_whose_messages_another_client_holds_stays(movers):
    movers.declare_celery_native()
    movers.call_celery_native(5000)
    movers.holds(1, *level_names())
    channel = movers.connection.channel()
    held: list[Any] = []
    tag = channel.basic_consume(level(12), callback=held.append)
    movers.holds(0, *level_names())
    with pytest.raises(TopologyError, match=r"'celery_delayed_12' .* in use"):
        remove(movers.connection, movers.app, {})
    channel.basic_cancel(tag)
    channel.close()
    movers.holds(1, level(12))
    movers.put("1.0.orders.key", b"it returns by the bindings", exchange="shop")
    assert movers.lab.get("orders", ack=True).body == b"it returns by the bindings"


def test_the_bindings_of_a_queue_that_is_bound_with_a_hash_are_its_own(movers):
    every: Any = movers.app.amqp.queues["orders"]
    every.routing_key = "#.orders.key"
    assert added_bindings(movers.app) == [("mails", "shop", "#.mails.key")]
