"""Parked tasks that are released at once."""

import pytest

from celery_rmq_delay import headers as h
from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.amqp.capabilities import capabilities
from celery_rmq_delay.amqp.scan import inspection_leaves_no_trace
from celery_rmq_delay.exceptions import SelectionError
from celery_rmq_delay.names import return_key
from celery_rmq_delay.operations.parked import release
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers.lab import HOUR
from tests.support.brokers.lab_app import opened, park, plan_of, shop
from tests.support.waiting import wait_for

pytestmark = pytest.mark.brokers


def delay_queue(plan, number):
    return plan.delay_queue(number, plan.ladder.tiers_ms[number - 1]).name


def parked(lab, queue, count):
    wait_for(lambda: ready_counts(lab.connection, [queue])[queue] == count, f"{count} messages in {queue}")


def test_a_released_task_is_back_at_once_with_its_attempts_and_its_first_route(lab):
    _, plan = opened(lab)
    exchange = lab.exchange("topic")
    lab.channel.queue_bind(plan.queue, exchange, "orders.#")
    headers = {"id": "a", "task": "shop.charge", "retries": 2, "tenant": "x"}
    lab.publish("orders.new", "bytes", exchange=exchange, headers=headers, priority=4)
    lab.reject(lab.get(plan.queue))
    parked(lab, delay_queue(plan, 1), 1)

    assert release(lab.connection, [plan], task_ids=["a"]).released == ["a"]
    back = lab.get(plan.queue)
    assert back.delivery_info["routing_key"] == return_key(plan.queue, 1)
    assert not back.delivery_info["redelivered"]
    assert back.body == "bytes"
    assert back.properties["priority"] == 4
    assert h.first_route(back.headers, plan.queue, "", "") == (exchange, "orders.new")
    assert back.headers.items() >= {"id": "a", "retries": 3, h.RETRIES: 2, "tenant": "x"}.items()
    assert h.FIRST_FAILED in back.headers
    assert "x-death" not in back.headers
    assert ready_counts(lab.connection, [delay_queue(plan, 1)])[delay_queue(plan, 1)] == 0


def test_a_released_task_goes_on_to_the_next_tier(lab):
    _, plan = opened(lab)
    park(lab, plan, "a")
    parked(lab, delay_queue(plan, 1), 1)
    release(lab.connection, [plan], everything=True)
    lab.reject(lab.get(plan.queue))
    parked(lab, delay_queue(plan, 2), 1)
    release(lab.connection, [plan], everything=True)
    assert lab.get(plan.queue).headers["retries"] == 2


def test_the_named_or_the_oldest_are_released_and_the_others_keep_their_places(lab):
    _, plan = opened(lab)
    park(lab, plan, "a", "b", "c", "d", "e")
    parked(lab, delay_queue(plan, 1), 5)
    found = release(lab.connection, [plan], task_ids=["c", "due"])
    assert (found.released, found.not_found) == (["c"], ["due"])
    parked(lab, delay_queue(plan, 1), 4)
    assert release(lab.connection, [plan], everything=True, limit=3).released == ["a", "b", "d"]
    parked(lab, delay_queue(plan, 1), 1)
    assert release(lab.connection, [plan], everything=True).released == ["e"]


def test_messages_passed_over_by_a_release_still_come_back_when_due(lab):
    for tier in (1, 4, 16, 64):  # the longer ones for a machine that is slow to release one
        _, plan = opened(lab, tiers=[f"{tier}s"])
        park(lab, plan, "a", "b")
        found = release(lab.connection, [plan], task_ids=["b"])
        if found.released == ["b"] and lab.counts(plan) == {delay_queue(plan, 1): 1}:
            break
        for _ in range(2):
            lab.get(plan.queue, ack=True)
    assert [lab.get(plan.queue).headers["id"] for _ in range(2)] == ["b", "a"]


def test_a_message_parked_again_at_once_is_not_released_again(lab):
    _, plan = opened(lab)
    lab.channel.queue_unbind(plan.queue, plan.names.returns, return_key(plan.queue, 1))
    lab.channel.queue_bind(delay_queue(plan, 2), plan.names.returns, return_key(plan.queue, 1))
    lab.publish(delay_queue(plan, 1), headers={"id": "a"})
    assert release(lab.connection, [plan], everything=True).released == ["a"]
    parked(lab, delay_queue(plan, 2), 1)


def test_a_tier_can_be_released_alone(lab):
    _, plan = opened(lab)
    lab.publish(delay_queue(plan, 1), headers={"id": "first"})
    lab.publish(delay_queue(plan, 2), headers={"id": "second"})
    assert release(lab.connection, [plan], everything=True, delay_ms=2 * HOUR).released == ["second"]
    assert lab.get(plan.queue).delivery_info["routing_key"] == return_key(plan.queue, 2)


def test_a_task_in_a_retired_tier_is_found(lab):
    _, old = opened(lab, tiers=["3h"])
    park(lab, old, "a")
    parked(lab, delay_queue(old, 1), 1)
    app = shop(lab, tiers=["1h"])
    plan = plan_of(lab, app)
    apply_plan(lab.connection, plan)
    assert release(lab.connection, [plan], task_ids=["a"]).released == ["a"]


def test_every_lane_is_looked_through(lab):
    _, plan = opened(lab, tiers=["1h"], jitter=0.2)
    for lane in range(plan.ladder.lanes):
        lab.publish(plan.delay_queue(1, plan.ladder.ttl(1, lane)).name, headers={"id": f"{lane}"})
    assert release(lab.connection, [plan], task_ids=["4", "1"]).not_found == []


def test_a_search_ends_where_it_would_leave_too_many_traces(lab, monkeypatch):
    monkeypatch.setattr("celery_rmq_delay.operations.parked.TRACED_SCAN_LIMIT", 2)
    _, plan = opened(lab)
    park(lab, plan, "a", "b", "c", "d")
    parked(lab, delay_queue(plan, 1), 4)
    found = release(lab.connection, [plan], task_ids=["c"])
    if inspection_leaves_no_trace(capabilities(lab.connection)):
        assert (found.released, found.passed_over) == (["c"], 2)
    else:
        assert (found.released, found.not_found, found.unseen) == ([], ["c"], [delay_queue(plan, 1)])
        assert release(lab.connection, [plan], task_ids=["c"], scan_limit=3).released == ["c"]


def test_many_that_were_passed_over_keep_their_order(lab):
    _, plan = opened(lab)
    for number in range(100):
        lab.publish(delay_queue(plan, 1), headers={"id": str(number)})
    release(lab.connection, [plan], task_ids=["90"], scan_limit=1000)
    wanted = [str(number) for number in range(100) if number != 90]
    assert [lab.get(delay_queue(plan, 1), ack=True).headers["id"] for _ in wanted] == wanted


def test_a_task_is_released_to_a_queue_declared_again_and_stays_parked_without_its_queue(lab):
    _, plan = opened(lab)
    lab.publish(delay_queue(plan, 1), headers={"id": "a"})
    lab.channel.queue_unbind(plan.queue, plan.names.returns, return_key(plan.queue, 1))  # as a deletion does
    assert release(lab.connection, [plan], task_ids=["a"]).released == ["a"]
    assert lab.get(plan.queue, ack=True).headers["id"] == "a"
    lab.publish(delay_queue(plan, 1), headers={"id": "b"})
    lab.channel.queue_delete(plan.queue)
    found = release(lab.connection, [plan], task_ids=["b"])
    assert found.released == []
    assert "No queue takes messages" in found.failed["b"]
    parked(lab, delay_queue(plan, 1), 1)


@pytest.mark.parametrize(("task_ids", "everything"), [([], False), (["a"], True)])
def test_a_release_needs_a_selection_of_tasks(classic_lab, task_ids, everything):
    with pytest.raises(SelectionError, match=r"No tasks selected|leave one out"):
        release(classic_lab.connection, [], task_ids=task_ids, everything=everything)
