"""A queue is declared again as the other type: its record, delay queues and quarantine queue follow."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from celery_rmq_delay.amqp.apply import drift, ready_counts
from celery_rmq_delay.amqp.objects import Objects
from celery_rmq_delay.amqp.record import locked_record, read_record
from celery_rmq_delay.exceptions import RecordGoneError
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.names import moving, quarantine, return_key
from celery_rmq_delay.operations.pending import pending
from celery_rmq_delay.operations.prune import prune
from celery_rmq_delay.topology.applied import Applied
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers.kinds import BOTH_TYPES
from tests.support.brokers.lab import HOUR
from tests.support.brokers.switching import MOVING_STEPS, SOME, TASKS_A, A, B, Probe, crashed_apply, expected, settled
from tests.support.waiting import BUSY, wait_for

pytestmark = pytest.mark.brokers


def applied_then_other_type(lab, ladder):
    """Apply a plan; return it and the plan of the same queue after it was declared again with the other type."""
    old = lab.applied(lab.plan(ladder))
    return old, lab.plan(ladder, queue_type=old.of_other_type.queue_type)


def declared_again(lab, plan):
    lab.channel.queue_delete(plan.queue)
    lab.origin(plan)


def not_as_planned(lab, plan):
    return [each.name for each in drift(lab.connection, plan.objects() + Objects(queues=(plan.record_queue(),)))]


def waiting(lab, plan):
    return pending(lab.connection, plan, settled(lab, plan))


def copy_exists(lab, plan):
    name = moving(plan.record_queue().name)
    return ready_counts(lab.connection, [name])[name] is not None


@BOTH_TYPES
def test_record_tiers_and_quarantine_follow_a_queue_that_is_declared_again_as_the_other_type(lab):
    old, new = applied_then_other_type(lab, Ladder((HOUR, 2 * HOUR)))
    declared_again(lab, new)
    assert apply_plan(lab.connection, new, quick=True)
    assert not_as_planned(lab, new) == []
    assert not waiting(lab, new)
    assert not copy_exists(lab, new)
    lab.publish(new.queue)
    lab.reject(lab.get(new.queue))
    wait_for(
        lambda: lab.counts(old, new) == {new.delay_queue(1, HOUR).name: 1}, "the message in a tier of the new type"
    )
    assert not apply_plan(lab.connection, new, quick=True)


@BOTH_TYPES
def test_messages_in_tiers_of_the_old_type_come_back_to_the_new_queue_and_go_on(lab):
    old, new = applied_then_other_type(lab, Ladder((3_000, 50)))
    lab.publish(old.queue)
    lab.reject(lab.get(old.queue))
    wait_for(lambda: lab.counts(old), "the message parked")
    declared_again(lab, new)
    apply_plan(lab.connection, new)
    message = lab.get(new.queue)
    assert message.delivery_info["routing_key"] == return_key(new.queue, 1)
    lab.reject(message)
    message = lab.get(new.queue)
    assert message.delivery_info["routing_key"] == return_key(new.queue, 2)
    assert message.headers["x-death"][0]["queue"] == new.delay_queue(2, 50).name
    lab.reject(message)
    lab.get(new.exhausted, ack=True)


@BOTH_TYPES
def test_the_old_types_tiers_are_pruned_when_they_are_empty(lab):
    old, new = applied_then_other_type(lab, Ladder((HOUR, 2 * HOUR)))
    full = old.delay_queue(2, 2 * HOUR).name
    lab.publish(full)
    declared_again(lab, new)
    apply_plan(lab.connection, new)
    assert old.ladder.id in prune(lab.connection, new, {}).kept
    assert prune(lab.connection, new, {}, now=True).kept == {old.ladder.id: f"Messages are parked in {full} (1)."}
    lab.get(full, ack=True)
    report = prune(lab.connection, new, {}, now=True)
    assert (report.ladders, report.kept) == ([old.ladder.id], {})
    gone = [queue.name for _, _, queue in old.delay_queues([old.ladder])]
    assert ready_counts(lab.connection, gone) == dict.fromkeys(gone)
    assert drift(lab.connection, new.objects()) == []


@BOTH_TYPES
def test_a_plan_shows_what_a_change_of_the_type_replaces(lab):
    old, new = applied_then_other_type(lab, A)
    found = waiting(lab, new)
    assert [each.name for each in found.replace] == [new.record_queue().name, new.quarantine_queue().name]
    assert all(f"It is a {old.queue_type} queue." in each.problem for each in found.replace)
    assert found.conflicts == ()
    assert found.to_json()["ladder"] == {"from": f"1h 2h ({old.queue_type})", "to": f"1h 2h ({new.queue_type})"}
    assert {each["name"] for each in found.to_json()["replace"]} == {each.name for each in found.replace}
    assert not_as_planned(lab, old) == [], "an inspection changes nothing"


@BOTH_TYPES
@pytest.mark.parametrize("used", ["by-a-message", "by-a-consumer"])
def test_a_quarantine_queue_in_use_is_replaced_by_a_later_start(lab, used):
    old, new = applied_then_other_type(lab, A)
    name = quarantine(old.queue)
    if used == "by-a-message":
        lab.publish(name)
    consumer = lab.channel.basic_consume(name) if used == "by-a-consumer" else ""
    declared_again(lab, new)
    for _ in range(2):
        apply_plan(lab.connection, new, quick=True)
        assert not_as_planned(lab, new) == [name]
        assert [each.name for each in waiting(lab, new).replace] == [name]
    if consumer:
        lab.channel.basic_cancel(consumer)
    else:
        lab.get(name, ack=True)
    apply_plan(lab.connection, new, quick=True)
    assert not_as_planned(lab, new) == []


@BOTH_TYPES
@pytest.mark.parametrize("stride", [SOME, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_between_any_two_steps_of_a_change_of_the_type_loses_and_doubles_nothing(lab, monkeypatch, stride):
    a, b = lab.plan(A, TASKS_A), lab.plan(B, TASKS_A, queue_type=lab.plan(B).of_other_type.queue_type)
    lab.applied(lab.plan(B, TASKS_A))  # so that every ladder routes messages from its tiers
    apply_plan(lab.connection, a)
    probe = Probe(lab, a, b, a.of_other_type, b.of_other_type)
    for step in itertools.count(1, stride):
        crashed = crashed_apply(lab, b, step, monkeypatch, *MOVING_STEPS)
        assert a.ladder.id in settled(lab, a).ladders, "the record is in one of the two queues"
        probe.every_message_arrives_once(f"after a crash at step {step}")
        then = (a, b)[step % 2]
        apply_plan(lab.connection, then, quick=True)
        assert probe.every_message_arrives_once("after an apply") == expected(then, TASKS_A), step
        apply_plan(lab.connection, a)
        assert not copy_exists(lab, a)
        if not crashed:
            break
    assert step > 40, "the steps of the change were not all tried"
    probe.nothing_came_twice()


@BOTH_TYPES
def test_two_processes_with_different_types_apply_at_the_same_time_and_one_wins(lab):
    old, new = applied_then_other_type(lab, B)
    probe = Probe(lab, old, new)

    def apply_often(plan):
        connection = lab.connect()
        for _ in range(5):
            apply_plan(connection, plan, BUSY, quick=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(apply_often, (old, new)))
    winner = new if settled(lab, new).current == new.ladder.id else old
    assert probe.every_message_arrives_once("after the race") == expected(winner, {})
    assert not copy_exists(lab, new)
    probe.nothing_came_twice()


@BOTH_TYPES
def test_a_record_is_readable_while_its_queue_type_changes(lab):
    old, new = applied_then_other_type(lab, A)
    value, looker, changer = settled(lab, old), lab.connect(), lab.connect()

    def change(plan):
        with locked_record(changer, plan.record_queue(), BUSY):
            pass

    with ThreadPoolExecutor(1) as pool:
        for plan in (new, old) * 10:
            changing = pool.submit(change, plan)
            while not changing.done():
                assert Applied.from_json(read_record(looker, old.record_queue(), BUSY)) == value
            changing.result()
    assert not copy_exists(lab, old)


@BOTH_TYPES
def test_an_apply_that_waits_for_a_replaced_record_gets_it_afterwards(lab):
    old, new = applied_then_other_type(lab, A)
    with ThreadPoolExecutor(2) as pool, locked_record(lab.connect(), old.record_queue(), BUSY) as (_, held):
        waiters = [
            pool.submit(apply_plan, lab.connect(), new),
            pool.submit(prune, lab.connect(), new, {}, lock_timeout=BUSY),
        ]
        wait_for(lambda: len(held._received) >= 3 or held._channel.connection.drain_events(timeout=1), "both wait")
    assert waiters[0].result()
    with suppress(RecordGoneError):
        waiters[1].result()
    assert not_as_planned(lab, new) == []
