"""An origin queue is deleted, to be declared again with other arguments, without losing messages."""

import time

import pytest

from celery_rmq_delay import headers as h
from celery_rmq_delay.amqp import apply
from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.amqp.objects import Objects, Queue, arguments
from celery_rmq_delay.amqp.scan import Scan
from celery_rmq_delay.exceptions import RmqDelayError
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.operations import deletion
from celery_rmq_delay.operations.deletion import Deletion, delete_origin
from celery_rmq_delay.operations.exhausted import describe
from tests.support.brokers.alarms import slow_disk
from tests.support.brokers.lab import HOUR, contents
from tests.support.brokers.switching import lose_record
from tests.support.waiting import wait_for

pytestmark = pytest.mark.brokers


def delete(lab, plan):
    return delete_origin(lab.connection, plan, Objects(), None)


def parked(lab, plan):
    lab.publish(plan.queue, "parked")
    lab.reject(lab.get(plan.queue))
    wait_for(lambda: lab.counts(plan), "the message in its delay queue")


def exists(lab, queue):
    return ready_counts(lab.connection, [queue])[queue] is not None


def test_an_empty_queue_without_consumers_is_deleted_and_parked_messages_stay(lab):
    plan = lab.applied(lab.plan(Ladder((HOUR,))))
    parked(lab, plan)

    assert delete(lab, plan) == Deletion(plan.queue, deleted=True)

    assert not exists(lab, plan.queue)
    assert lab.counts(plan) == {plan.delay_queue(1, HOUR).name: 1}


def test_a_queue_with_consumers_is_kept_with_its_bindings(lab):
    plan = lab.applied(lab.plan(Ladder((1000,))))
    parked(lab, plan)
    tag = lab.channel.basic_consume(plan.queue, callback=lambda _message: None)
    assert delete(lab, plan) == Deletion(plan.queue, deleted=False, consumers=1)

    lab.channel.basic_cancel(tag)
    assert contents(lab.get(plan.queue, ack=True)) == b"parked"


def test_returned_messages_are_exhausted_with_their_attempts_and_first_route(lab):
    plan = lab.applied(lab.plan(Ladder((100,))))
    exchange = lab.exchange("direct")
    lab.channel.queue_bind(plan.queue, exchange, "key")
    lab.publish("key", "came back", exchange=exchange, headers={"id": "a", "task": "t", "retries": 0})
    lab.reject(lab.get(plan.queue))
    wait_for(lambda: ready_counts(lab.connection, [plan.queue]) == {plan.queue: 1}, "the message back in its queue")
    lab.publish("key", "fresh", exchange=exchange, headers={"id": "b", "task": "t", "retries": 0})

    assert delete(lab, plan) == Deletion(plan.queue, deleted=True, exhausted=2)

    found = [lab.get(plan.exhausted, ack=True) for _ in range(2)]
    assert [contents(each) for each in found] == [b"came back", b"fresh"]
    described = [describe(each) for each in found]
    assert [(each.queue, each.reason, each.attempts) for each in described] == [
        (plan.queue, "undeliverable", 1),
        (plan.queue, "undeliverable", 0),
    ]
    assert [(each.headers[h.EXCHANGE], each.headers[h.ROUTING_KEY]) for each in found] == [(exchange, "key")] * 2


def test_a_message_that_is_due_while_its_queue_is_deleted_is_exhausted(lab, monkeypatch):
    plan = lab.applied(lab.plan(Ladder((1000,))))
    parked(lab, plan)
    delete_unused = apply.delete_unused
    due: list[bytes] = []

    def wait_first(*given):
        due.extend([] if due else [contents(lab.get(plan.exhausted, ack=True))])
        return delete_unused(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(apply, "delete_unused", wait_first)
    assert delete(lab, plan).deleted
    assert due == [b"parked"]


def test_a_queue_in_which_a_message_arrives_meanwhile_is_kept_and_messages_come_back_to_it(lab, monkeypatch):
    plan = lab.applied(lab.plan(Ladder((1000,))))
    parked(lab, plan)
    delete_unused = apply.delete_unused
    published: list[str] = []

    def publish_first(*given):
        if "late" not in published:
            published.append("late")
            lab.publish(plan.queue, "late")
        return delete_unused(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(apply, "delete_unused", publish_first)
        found = delete(lab, plan)

    assert not found.deleted
    assert [contents(lab.get(plan.queue, ack=True)) for _ in range(2)] == [b"late", b"parked"]


def test_a_process_that_hangs_after_it_has_counted_deletes_no_quorum_queue(quorum_lab, monkeypatch):
    name, inspect_queue = quorum_lab.queue(), apply.inspect_queue
    monkeypatch.setattr(apply, "_FRESH", 0.1)

    def hang(*given):
        found = inspect_queue(*given)
        quorum_lab.publish(name, "came meanwhile")
        time.sleep(0.2)  # the hang
        return found

    with monkeypatch.context() as patch:
        patch.setattr(apply, "inspect_queue", hang)
        assert not apply.delete_unused(quorum_lab.connection, Queue(name, arguments({"x-queue-type": "quorum"})))
    assert contents(quorum_lab.get(name, ack=True)) == b"came meanwhile"


def test_a_queue_with_more_messages_than_one_scan_takes_is_deleted(lab, monkeypatch):
    plan = lab.applied(lab.plan(Ladder((HOUR,))))
    for number in range(5):
        lab.publish(plan.queue, str(number))
    monkeypatch.setattr(deletion, "SCAN_LIMIT", 2)
    assert delete(lab, plan) == Deletion(plan.queue, deleted=True, exhausted=5)


def test_a_queue_whose_messages_are_exhausted_is_deleted_on_a_slow_disk(quorum_lab, own_broker, monkeypatch):
    plan = quorum_lab.applied(quorum_lab.plan(Ladder((HOUR,))))
    quorum_lab.publish(plan.queue)
    remove = Scan.remove

    def remove_slowly(scan, message):
        slow_disk(own_broker)
        remove(scan, message)

    monkeypatch.setattr(Scan, "remove", remove_slowly)
    assert delete(quorum_lab, plan) == Deletion(plan.queue, deleted=True, exhausted=1)


def test_a_queue_without_a_ladder_is_kept_and_the_error_has_a_fix(lab):
    plan = lab.plan(Ladder((HOUR,)))
    lab.origin(plan)
    with pytest.raises(RmqDelayError, match="has no ladder: run"):
        delete(lab, plan)
    assert exists(lab, plan.queue)


def test_a_queue_whose_record_is_lost_is_kept_with_its_unknown_bindings(lab):
    plan = lab.applied(lab.plan(Ladder((1000,))))
    parked(lab, plan)
    lose_record(lab, plan)
    with pytest.raises(RmqDelayError, match=r"The record of the ladder of queue .* is gone"):
        delete(lab, lab.plan(Ladder((HOUR,))))
    assert contents(lab.get(plan.queue, ack=True)) == b"parked"


def test_a_queue_that_does_not_exist_is_as_good_as_deleted(lab):
    assert delete(lab, lab.plan(Ladder((HOUR,)))).deleted
