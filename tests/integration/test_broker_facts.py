"""Facts about RabbitMQ that decide a design here: a version that behaves otherwise is to be seen."""

from __future__ import annotations

import amqp
import pytest
from amqp.exceptions import PreconditionFailed

from celery_rmq_delay import headers as h
from celery_rmq_delay.broker import Capabilities
from celery_rmq_delay.crashes import was_interrupted
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.topology.apply import ready_counts
from celery_rmq_delay.topology.ladder import LadderPlan
from tests.waiting import wait_for

from .lab import Lab

LADDER = Ladder((5,), repeat_last=True)


@pytest.fixture
def plan(lab: Lab) -> LadderPlan:
    return lab.applied(lab.plan(LADDER))


def interrupted(lab: Lab, message: amqp.Message) -> bool:
    return was_interrupted(
        message.headers,
        redelivered=message.delivery_info["redelivered"],
        quorum=lab.queue_type == "quorum",
        broker=Capabilities(lab.version),
    )


def lose_worker(lab: Lab, queue: str) -> None:
    """Take a message on a connection of its own and lose it with the connection."""
    connection = lab.connect()
    wait_for(lambda: connection.default_channel.basic_get(queue), f"a message in {queue}")
    connection.collect()


def flagged_after_return(lab: Lab) -> bool:
    if lab.queue_type == "quorum":
        return lab.version >= (4, 0, 0)
    return Capabilities(lab.version).flags_returned


def test_what_comes_back_from_a_delay_queue_is_flagged_by_new_brokers_only(lab: Lab, plan: LadderPlan) -> None:
    lab.publish(plan.queue)
    message = lab.get(plan.queue)
    assert not message.delivery_info["redelivered"]
    for _ in range(4):
        lab.reject(message)
        message = lab.get(plan.queue)
        assert message.delivery_info["redelivered"] == flagged_after_return(lab)
    lab.channel.basic_ack(message.delivery_tag)


def test_what_was_published_into_a_delay_queue_is_not_flagged_by_any_broker(lab: Lab, plan: LadderPlan) -> None:
    """So a copy that is published there keeps the crash guard able to see a crash."""
    for _ in range(2):
        lab.publish(plan.rung_queue(1, 5).name)
        message = lab.get(plan.queue, ack=True)
        assert not message.delivery_info["redelivered"]
        assert not message.headers.get("x-delivery-count")


def test_what_a_lost_worker_had_is_flagged_by_every_broker(lab: Lab, plan: LadderPlan) -> None:
    lab.publish(plan.queue)
    lose_worker(lab, plan.queue)
    message = lab.get(plan.queue)
    assert message.delivery_info["redelivered"]
    assert interrupted(lab, message)
    lab.channel.basic_ack(message.delivery_tag)


def test_a_crash_after_a_copy_in_a_delay_queue_is_seen_by_every_broker(lab: Lab, plan: LadderPlan) -> None:
    lab.publish(plan.rung_queue(1, 5).name)
    assert lab.get(plan.queue).delivery_info["redelivered"] is False
    lab.channel.close()
    lab.channel = lab.connection.channel()
    message = lab.get(plan.queue)
    assert interrupted(lab, message)
    lab.channel.basic_ack(message.delivery_tag)


@pytest.mark.parametrize("rounds", [1, 3])
def test_retries_are_no_interruptions_and_a_crash_after_retries_is_one(lab: Lab, plan: LadderPlan, rounds: int) -> None:
    """On quorum queues of 4.x by the delivery count, elsewhere by the flag."""
    if lab.queue_type == "classic" and Capabilities(lab.version).flags_returned:
        pytest.skip("classic queues of this version flag what was rejected: the worker publishes copies instead")
    lab.publish(plan.queue)
    for done in range(rounds):
        message = lab.get(plan.queue)
        assert h.rejections(message.headers, plan.queue) == done
        assert not interrupted(lab, message)
        lab.reject(message)
    message = lab.get(plan.queue)
    assert not interrupted(lab, message)
    lab.channel.close()
    lab.channel = lab.connection.channel()
    message = lab.get(plan.queue)
    if lab.queue_type == "quorum" and (4, 0, 0) <= lab.version < (4, 1, 0) and rounds == 1:
        # 4.0 counts anew: one rejection and one interruption look like one rejection. The next one is seen.
        assert not interrupted(lab, message)
        lab.channel.close()
        lab.channel = lab.connection.channel()
        message = lab.get(plan.queue)
    assert interrupted(lab, message)
    lab.channel.basic_ack(message.delivery_tag)


def test_the_delivery_count_of_quorum_queues_counts_rejections_until_a_crash(quorum_lab: Lab) -> None:
    lab = quorum_lab
    if lab.version < (4, 0, 0):
        pytest.skip("the count begins anew with each return before 4.0")
    plan = lab.applied(lab.plan(LADDER))
    lab.publish(plan.queue)
    for rejections in range(4):
        message = lab.get(plan.queue)
        assert h.whole_number(message.headers.get("x-delivery-count")) == rejections
        lab.reject(message)
    lab.get(plan.queue)
    lab.channel.close()
    lab.channel = lab.connection.channel()
    message = lab.get(plan.queue)
    # 4.0 starts anew with the interruption, 4.3 goes on: never the number of rejections.
    count = h.whole_number(message.headers.get("x-delivery-count"))
    assert count == (5 if lab.version >= (4, 1, 0) else 1)
    lab.channel.basic_ack(message.delivery_tag)


def test_a_crash_before_the_first_rejection_stays_visible_until_the_next_one_only(quorum_lab: Lab) -> None:
    """After it the copy among the suspects starts with a clean history, so nothing has to be remembered here."""
    lab = quorum_lab
    plan = lab.applied(lab.plan(LADDER))
    lab.publish(plan.queue)
    lab.channel.basic_reject(lab.get(plan.queue).delivery_tag, requeue=True)
    message = lab.get(plan.queue)
    assert interrupted(lab, message)
    copy = h.forwarded(message.headers, retries=0, exchange="", routing_key=plan.queue, more={h.CRASHES: 1})
    lab.channel.basic_ack(message.delivery_tag)
    lab.publish(plan.queue, headers=copy)
    message = lab.get(plan.queue)
    assert not interrupted(lab, message)
    lab.channel.basic_ack(message.delivery_tag)


def test_the_history_of_a_published_message_counts_on_old_brokers_only(lab: Lab, plan: LadderPlan) -> None:
    """So it is stripped from every copy."""
    forged = [{"queue": plan.queue, "reason": "rejected", "count": 7, "exchange": "", "routing-keys": ["k"]}]
    lab.publish(plan.queue, headers={"x-death": forged})
    lab.reject(lab.get(plan.queue))
    message = lab.get(plan.queue, ack=True)
    assert h.rejections(message.headers, plan.queue) == (8 if lab.version < (4, 0, 0) else 1)


def test_the_reason_of_the_last_death_is_told_since_3_13(lab: Lab, plan: LadderPlan) -> None:
    lab.publish(plan.queue)
    lab.reject(lab.get(plan.queue))
    message = lab.get(plan.queue, ack=True)
    assert ("x-last-death-reason" in message.headers) == lab.tells_death_reason
    assert message.headers["x-first-death-reason"] == "rejected"
    assert message.headers["x-first-death-queue"] == plan.queue


def test_a_cycle_without_a_rejection_is_dropped(classic_lab: Lab) -> None:
    """Why no death but a rejection may climb."""
    lab = classic_lab
    second = f"{lab.names.prefix}-second"
    first = lab.queue(**{"x-message-ttl": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": second})
    lab.queue(second, **{"x-message-ttl": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": first})
    lab.publish(first)
    later = lab.queue()
    lab.publish(lab.queue(**{"x-message-ttl": 200, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": later}))
    lab.get(later, ack=True)  # by then it would have gone round twenty times
    assert ready_counts(lab.connection, [first, second]) == {first: 0, second: 0}


def test_quorum_queues_let_several_consumers_be_exclusive(quorum_lab: Lab) -> None:
    """Why the lock of the record is a single active consumer. Should this fail one day, the lock may be simpler."""
    lab = quorum_lab
    queue = lab.queue()
    lab.channel.basic_consume(queue, exclusive=True, callback=print)
    other = lab.connect().channel()
    other.basic_consume(queue, exclusive=True, callback=print)
    assert other.is_open


def test_a_queue_cannot_be_given_a_dead_letter_exchange_later(lab: Lab) -> None:
    queue = lab.queue()
    with pytest.raises(PreconditionFailed):
        lab.connection.channel().queue_declare(
            queue,
            durable=True,
            auto_delete=False,
            arguments={"x-queue-type": lab.queue_type, "x-dead-letter-exchange": "later"},
        )
