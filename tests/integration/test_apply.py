"""Plans are declared in the broker; existing objects are found quickly and not changed."""

from dataclasses import replace
from typing import Any

import pytest
from amqp import Channel, spec

from celery_rmq_delay.amqp.apply import Drift, declare, drift, ensure_queue, ready_counts, unbind
from celery_rmq_delay.amqp.objects import Binding, Exchange, Objects, Queue, arguments
from celery_rmq_delay.durations import MAX_TTL_MS
from celery_rmq_delay.exceptions import TopologyError
from celery_rmq_delay.ladders import Ladder, QueueType
from celery_rmq_delay.names import quarantine
from celery_rmq_delay.topology.ladder import LadderPlan
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers.lab import HOUR

LADDER = Ladder((1000, 2000))


@pytest.mark.brokers
def test_after_an_apply_nothing_drifts(lab):
    plan = lab.plan(Ladder((1000, 2000), jitter=0.2, lanes=3), {"own": LADDER})
    missing = drift(lab.connection, plan.objects())
    assert {(each.kind, each.name, each.problem) for each in missing} == {
        *(("exchange", each.name, "missing") for each in plan.objects().exchanges),
        *(("queue", each.name, "missing") for each in plan.objects().queues),
    }
    lab.applied(plan)
    assert drift(lab.connection, plan.objects()) == []


@pytest.mark.brokers
def test_drift_names_missing_and_different_objects_and_changes_nothing(lab):
    plan = lab.plan(LADDER)
    lab.applied(plan)
    tiers = [queue.name for _, _, queue in plan.delay_queues([plan.ladder])]
    lab.channel.queue_delete(tiers[0])
    lab.channel.queue_delete(tiers[1])
    lab.queue(tiers[1], **{"x-message-ttl": 5})
    lab.channel.exchange_delete(plan.names.returns)
    lab.channel.exchange_declare(plan.names.returns, "topic", durable=True, auto_delete=False)
    found = drift(lab.connection, plan.objects())
    assert Drift("queue", tiers[0], "missing") in found
    assert {(each.kind, each.name) for each in found} == {
        ("queue", tiers[0]),
        ("queue", tiers[1]),
        ("exchange", plan.names.returns),
    }
    assert "inequivalent arg" in next(each.problem for each in found if each.name == tiers[1])
    assert ready_counts(lab.connection, tiers) == {tiers[0]: None, tiers[1]: 0}


@pytest.mark.brokers
def test_an_object_with_other_arguments_is_an_error_with_the_fix(lab):
    plan = lab.plan(LADDER)
    lab.origin(plan)
    name = plan.delay_queue(1, 1000).name
    lab.queue(name, **{"x-message-ttl": 5})
    with pytest.raises(TopologyError, match=rf"{name}.*doctor.*apply again"):
        apply_plan(lab.connection, plan)


@pytest.mark.brokers
def test_an_apply_declares_deleted_queues_again(lab):
    plan = lab.applied(lab.plan(Ladder((10, 20))))
    lab.channel.queue_delete(plan.delay_queue(1, 10).name)
    lab.channel.queue_delete(quarantine(plan.queue))
    apply_plan(lab.connection, plan)
    assert drift(lab.connection, plan.objects()) == []
    lab.publish(plan.queue)
    assert len(lab.advance(plan)) == 4


def test_an_apply_declares_a_deleted_ladder_exchange_again(lab):
    plan = lab.applied(lab.plan(Ladder((10,)), {"own": Ladder((20,))}))
    for exchange in plan.objects().exchanges:
        lab.channel.exchange_delete(exchange.name)
    apply_plan(lab.connection, plan)
    for task in ("own", "other"):
        lab.publish(plan.queue, headers={"task": task})
        assert len(lab.advance(plan)) == 3


@pytest.mark.brokers
def test_a_quick_apply_declares_deleted_objects_again(lab):
    plan = lab.applied(lab.plan(Ladder((10, 20))))
    names, channel = plan.names, lab.channel
    exchanges = (
        names.active(plan.queue),
        names.tasks(plan.queue),
        names.dlx(plan.queue),
        names.first(plan.queue, plan.ladder.id),
        names.returns,
    )
    deleted = [
        *((channel.exchange_delete, name) for name in exchanges),
        *((channel.queue_delete, name) for name in (plan.delay_queue(2, 20).name, quarantine(plan.queue))),
    ]
    for delete, name in deleted:
        assert not apply_plan(lab.connection, plan, quick=True)
        delete(name)
        assert not apply_plan(lab.connection, plan, quick=True)
        assert drift(lab.connection, plan.objects()) == [], name
        lab.publish(plan.queue)
        assert len(lab.advance(plan)) == 4, name


@pytest.mark.brokers
def test_a_quick_apply_binds_queues_that_were_deleted_and_declared_again(lab):
    plan = lab.applied(lab.plan(Ladder((10, 20))))
    for queue in (plan.queue, plan.exhausted):
        lab.channel.queue_delete(queue)
        lab.origin(plan)
        assert not apply_plan(lab.connection, plan, quick=True)
        lab.publish(plan.queue)
        assert len(lab.advance(plan)) == 4, queue


def test_a_quick_apply_of_another_plan_is_a_whole_one(lab):
    plan, own, other = (
        lab.plan(Ladder((10,))),
        lab.plan(Ladder((10,)), {"t": Ladder((10, 10))}),
        lab.plan(Ladder((5, 5))),
    )
    lab.applied(plan)
    for each, deliveries in (
        (own, 4),
        (other, 4),
        (plan, 4),
        (replace(plan, tasks={"t": None}), 3),
        (own, 4),
        (own, 4),
    ):
        apply_plan(lab.connection, each, quick=True)
        lab.publish(plan.queue, headers={"task": "t"})
        assert len(lab.advance(each)) == deliveries


@pytest.mark.brokers
def test_the_exhausted_queue_may_be_of_any_type(lab):
    other: QueueType = "quorum" if lab.queue_type == "classic" else "classic"
    plan = lab.plan(Ladder((10,)))
    lab.queue(plan.exhausted, **{"x-queue-type": other})
    lab.applied(plan)
    lab.publish(plan.queue)
    assert len(lab.advance(plan)) == 3


def test_two_queues_of_different_types_share_the_exhausted_queue(lab):
    other: QueueType = "quorum" if lab.queue_type == "classic" else "classic"
    for plan in (
        lab.plan(Ladder((10,)), queue=f"{lab.names.prefix}-1"),
        lab.plan(Ladder((10,)), queue=f"{lab.names.prefix}-2", queue_type=other),
    ):
        lab.applied(plan)
        lab.publish(plan.queue)
        assert len(lab.advance(plan)) == 3


@pytest.mark.brokers
def test_ensure_queue_does_not_change_an_existing_queue(lab):
    name = lab.queue(**{"x-message-ttl": 5})
    ensure_queue(lab.connection, Queue(name, arguments({"x-queue-type": lab.queue_type})))
    assert ready_counts(lab.connection, [name]) == {name: 0}


@pytest.mark.brokers
def test_removing_a_missing_binding_is_no_error(lab):
    queue, exchange = lab.queue(), lab.exchange("direct")
    unbind(lab.channel, Binding(exchange, queue, key="never"))
    unbind(lab.channel, Binding(exchange, exchange, to="exchange", key="never"))
    assert lab.channel.is_open


@pytest.mark.brokers
def test_removing_a_binding_of_a_missing_exchange_is_no_error(lab):
    """`prune` deletes the exchanges of old ladders, which a record may still name."""
    queue = lab.queue()
    unbind(lab.channel, Binding("no-such-exchange", queue))
    unbind(lab.channel, Binding("no-such-exchange", "nor-this", to="exchange"))
    assert lab.channel.is_open


@pytest.mark.brokers
def test_an_exchange_of_another_type_is_an_error_with_the_fix(lab):
    name = lab.exchange("topic")
    with pytest.raises(TopologyError, match="cannot change them"):
        declare(lab.connection.channel(), Objects(exchanges=(Exchange(name, "direct"),)))


# -- the longest delay -------------------------------------------------------------------------------------------------


@pytest.mark.brokers
def test_the_broker_takes_the_longest_ttl_and_no_longer_one(lab):
    longest = Ladder((MAX_TTL_MS,))
    plan = lab.applied(lab.plan(longest))
    lab.publish(plan.queue)
    lab.reject(lab.get(plan.queue))
    too_long = replace(plan, queue=f"{plan.queue}-2", ladder=Ladder((MAX_TTL_MS + 1,)))
    name = too_long.delay_queue(1, MAX_TTL_MS + 1).name
    lab.forget(name)
    with pytest.raises(TopologyError, match="x-message-ttl"):
        declare(lab.connection.channel(), Objects(queues=(too_long.delay_queue(1, MAX_TTL_MS + 1),)))
    assert ready_counts(lab.connection, [name]) == {name: None}


# -- many queues -------------------------------------------------------------------------------------------------------


def test_a_quick_apply_that_finds_all_declared_waits_for_few_answers_and_binds_two_queues(classic_lab, monkeypatch):
    lab = classic_lab
    plan = lab.plan(Ladder((10_000, 60_000, 600_000, HOUR, 2 * HOUR)), {"own": LADDER})
    sent: list[Any] = []
    bound: list[str] = []
    answers = 0
    send = Channel.send_method

    def counting(channel, method, *arguments, **more):
        nonlocal answers
        sent.append(method)
        if method == spec.Queue.Bind:
            bound.append(arguments[1][1])
        answers += more.get("wait") is not None
        return send(channel, method, *arguments, **more)

    monkeypatch.setattr(Channel, "send_method", counting)
    lab.applied(plan)
    declaring = answers
    sent.clear()
    bound.clear()
    assert not apply_plan(lab.connection, plan, quick=True)
    assert answers - declaring < declaring / 2
    assert {spec.Queue.Unbind, spec.Exchange.Bind, spec.Exchange.Unbind}.isdisjoint(sent)
    assert set(bound) == {plan.queue, plan.exhausted}


@pytest.mark.brokers
def test_a_plan_is_applied_for_any_queue_name(lab):
    for name in ("a.first", "a.retry.1", "a@1", "return", "with space", "Ünïcode.日本", "x" * 150):
        plan: LadderPlan = lab.applied(lab.plan(LADDER, queue=f"{lab.names.prefix}-{name}"))
        assert drift(lab.connection, plan.objects()) == []
