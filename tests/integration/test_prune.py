"""Objects of retired ladders, and when they are pruned."""

from dataclasses import replace

import amqp
import pytest

from celery_rmq_delay.amqp.apply import drift, ready_counts
from celery_rmq_delay.amqp.objects import Objects
from celery_rmq_delay.amqp.record import locked_record, read_record
from celery_rmq_delay.amqp.scan import scanning
from celery_rmq_delay.exceptions import LockTimeoutError
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.names import return_key
from celery_rmq_delay.operations.prune import Pruned, prune
from celery_rmq_delay.topology.applied import Applied
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers.lab import HOUR, contents
from tests.support.waiting import BUSY, wait_for


def changed(lab, *ladders):
    """Apply one ladder after the other to one queue; the last is in force."""
    plans = [lab.plan(ladder) for ladder in ladders]
    lab.origin(plans[0])
    for plan in plans:
        apply_plan(lab.connection, plan)
    return plans


def record_of(lab, plan):
    return Applied.from_json(read_record(lab.connection, plan.record_queue()))


def existing(lab, names):
    return {name for name, count in ready_counts(lab.connection, names).items() if count is not None}


def delay_queues(plan):
    return {queue.name for _, _, queue in plan.delay_queues([plan.ladder])}


def exchanges(plan):
    return Objects(exchanges=plan.ladder_objects(plan.ladder, 0).exchanges)


def retired_long_ago(lab, plan):
    """Set the time in the record at which all ladders were retired to 1970."""
    with locked_record(lab.connection, plan.record_queue(), BUSY) as (_, record):
        known = Applied.from_json(record.value)
        record.save(replace(known, retired=dict.fromkeys(known.retired, 0.0)).to_json())


@pytest.mark.brokers
@pytest.mark.parametrize("jitter", [0.0, 0.2])
def test_a_retired_ladder_is_deleted_with_all_its_objects(lab, jitter):
    lanes = 3 if jitter else 1
    old, new = changed(lab, Ladder((3 * HOUR, 4 * HOUR), jitter, lanes), Ladder((HOUR,), jitter, lanes))
    report = prune(lab.connection, new, {}, now=True)
    assert report.ladders == [old.ladder.id]
    assert set(report.deleted) == delay_queues(old) | {each.name for each in exchanges(old).exchanges}
    assert existing(lab, delay_queues(old)) == set()
    assert {each.problem for each in drift(lab.connection, exchanges(old))} == {"missing"}
    assert drift(lab.connection, new.objects()) == []
    after = record_of(lab, new)
    assert (after.retired, set(after.ladders), after.current) == ({}, {new.ladder.id}, new.ladder.id)
    assert not apply_plan(lab.connection, new)
    lab.publish(new.queue)
    lab.reject(lab.get(new.queue))
    wait_for(lambda: lab.counts(new), "the ladder in force")


@pytest.mark.brokers
def test_nothing_with_messages_is_deleted(lab):
    old, new = changed(lab, Ladder((3 * HOUR, 4 * HOUR)), Ladder((HOUR,)))
    full = old.delay_queue(2, 4 * HOUR).name
    lab.publish(full)
    report = prune(lab.connection, new, {}, now=True)
    assert (report.ladders, report.deleted) == ([], [])
    assert full in report.kept[old.ladder.id]
    assert existing(lab, delay_queues(old)) == delay_queues(old)
    lab.get(full, ack=True)
    assert prune(lab.connection, new, {}, now=True).ladders == [old.ladder.id]


@pytest.mark.brokers
def test_messages_that_are_being_inspected_are_not_pruned(lab):
    old, new = changed(lab, Ladder((3 * HOUR, 4 * HOUR)), Ladder((HOUR,)))
    full = old.delay_queue(2, 4 * HOUR).name
    for number in range(10):
        lab.publish(full, str(number))
    with scanning(lab.connect(), full, is_delay_queue=True) as scan:
        assert [contents(scan.raw) for _ in scan] == [b"%d" % number for number in range(10)]
        assert "in use" in prune(lab.connection, new, {}, now=True).kept[old.ladder.id]
    assert [contents(lab.get(full, ack=True)) for _ in range(10)] == [b"%d" % number for number in range(10)]
    wait_for(lambda: prune(lab.connection, new, {}, now=True).ladders == [old.ladder.id])


def test_a_ladder_waits_until_old_workers_cannot_use_it_any_more(lab):
    old, new = changed(lab, Ladder((3 * HOUR,)), Ladder((HOUR,)))
    report = prune(lab.connection, new, {})
    assert report.ladders == []
    assert "--now" in report.kept[old.ladder.id]
    retired_long_ago(lab, new)
    assert prune(lab.connection, new, {}).ladders == [old.ladder.id]


def test_a_tier_that_a_ladder_in_force_shares_stays_with_its_messages(lab):
    old, new = changed(lab, Ladder((HOUR, 3 * HOUR)), Ladder((HOUR, 2 * HOUR)))
    shared = old.delay_queue(1, HOUR).name
    lab.publish(shared)
    report = prune(lab.connection, new, {}, now=True)
    assert report.ladders == [old.ladder.id]
    assert shared not in report.deleted
    assert ready_counts(lab.connection, [shared])[shared] == 1


def test_a_tier_that_two_retired_ladders_share_stays_while_one_of_them_does(lab):
    first, second, new = changed(lab, Ladder((3 * HOUR, 5 * HOUR)), Ladder((3 * HOUR, 6 * HOUR)), Ladder((HOUR,)))
    lab.publish(second.delay_queue(2, 6 * HOUR).name)
    report = prune(lab.connection, new, {}, now=True)
    assert report.ladders == [first.ladder.id]
    assert existing(lab, delay_queues(second)) == delay_queues(second)


@pytest.mark.brokers
def test_bindings_of_tiers_that_no_ladder_has_are_removed(lab):
    old, new = changed(lab, Ladder((HOUR, 2 * HOUR, 3 * HOUR)), Ladder((HOUR,)))
    prune(lab.connection, new, {}, now=True)
    for tier_index in (1, 2, 3):
        lab.channel.basic_publish(
            amqp.Message("back"), exchange=new.names.returns, routing_key=return_key(old.queue, tier_index)
        )
    wait_for(lambda: ready_counts(lab.connection, [new.queue])[new.queue] == 1, "the way back from the first tier")


def test_nothing_is_pruned_without_a_record_and_the_ladder_in_force_and_that_of_a_task_stay(lab):
    plan = lab.plan(Ladder((HOUR,)), {"shop.ping": Ladder((2 * HOUR,))})
    assert prune(lab.connection, plan, {}, now=True) == Pruned(plan.queue)
    assert existing(lab, [plan.record_queue().name]) == set()
    lab.applied(plan)
    assert prune(lab.connection, plan, {}, now=True) == Pruned(plan.queue)
    assert drift(lab.connection, plan.objects()) == []


def test_a_retired_ladder_that_the_settings_want_again_stays(lab):
    old, _ = changed(lab, Ladder((3 * HOUR,)), Ladder((HOUR,)))
    assert prune(lab.connection, old, {}, now=True).ladders == []
    assert apply_plan(lab.connection, old)
    assert drift(lab.connection, old.objects()) == []


def test_a_pruned_ladder_can_come_back(lab):
    old, new = changed(lab, Ladder((3 * HOUR, 4 * HOUR)), Ladder((HOUR,)))
    prune(lab.connection, new, {}, now=True)
    apply_plan(lab.connection, old)
    lab.publish(old.queue)
    lab.reject(lab.get(old.queue))
    wait_for(lambda: lab.counts(old), "the ladder that came back")


def test_after_a_prune_that_was_cut_off_the_next_one_ends_it(lab):
    old, new = changed(lab, Ladder((3 * HOUR,)), Ladder((HOUR,)))
    lab.channel.exchange_delete(old.names.ladder(old.queue, old.ladder.id))
    lab.channel.queue_delete(old.delay_queue(1, 3 * HOUR).name)
    assert apply_plan(lab.connection, new) is False
    assert prune(lab.connection, new, {}, now=True).ladders == [old.ladder.id]
    assert record_of(lab, new).retired == {}


def test_a_prune_waits_for_those_that_apply(lab):
    (plan,) = changed(lab, Ladder((HOUR,)))
    with locked_record(lab.connect(), plan.record_queue(), BUSY), pytest.raises(LockTimeoutError):
        prune(lab.connection, plan, {}, now=True, lock_timeout=0.2)
