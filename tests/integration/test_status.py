"""The state of queues and tiers, read without side effects."""

from datetime import datetime, timedelta, timezone

import pytest

from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.amqp.capabilities import capabilities
from celery_rmq_delay.amqp.record import read_record
from celery_rmq_delay.amqp.scan import inspection_leaves_no_trace
from celery_rmq_delay.names import quarantine
from celery_rmq_delay.operations.status import queue_status, read_status
from celery_rmq_delay.retry.decision import was_interrupted
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers.lab import HOUR
from tests.support.brokers.lab_app import opened, park, plan_of, shop
from tests.support.waiting import wait_for

pytestmark = pytest.mark.brokers


def settled(lab, app, parked):
    """Return the state once the broker has routed all rejected messages."""

    def look():
        (found,) = queue_status(app, lab.connection)  # type: ignore[arg-type]
        return found if found.parked == parked else None

    return wait_for(look, f"{parked} parked messages")  # type: ignore[no-any-return]


def test_each_tier_counts_its_parked_messages(lab):
    app, plan = opened(lab)
    park(lab, plan, "a", "b", "c")
    found = settled(lab, app, parked=3)
    tiers = [(tier.tier_index, tier.delay_ms, tier.parked) for tier in found.tiers]
    assert tiers == [(1, HOUR, 3), (2, 2 * HOUR, 0)]
    assert (found.ready, found.quarantine, found.queue_type) == (0, 0, lab.queue_type)


def test_ready_quarantined_and_exhausted_messages_are_counted(lab):
    app, plan = opened(lab)
    for queue, count in ((plan.queue, 3), (quarantine(plan.queue), 2), (plan.exhausted, 1)):
        for _ in range(count):
            lab.publish(queue)

    def look():
        found = read_status(app, lab.connection)
        return (found.queues[0].ready, found.queues[0].quarantine, found.exhausted) == (3, 2, 1)

    wait_for(look, "the counts")


def test_the_lanes_of_a_tier_count_together(lab):
    app, plan = opened(lab, tiers=["1h"], jitter=0.5)
    lanes = range(plan.ladder.lanes)
    park(lab, plan, "without-lane")
    for lane in lanes:
        park(lab, plan, f"task-{lane}", **{"rmq-delay-lane": lane})
    (tier,) = settled(lab, app, parked=len(lanes) + 1).tiers
    assert tier.due_within_ms == min(plan.ladder.lane_ttls(1))


def test_the_next_due_time_is_reported_or_bounded(lab):
    app, plan = opened(lab)
    before = datetime.now(timezone.utc)
    park(lab, plan, "a")
    tier = settled(lab, app, parked=1).tiers[0]
    assert tier.due_within_ms == 3_600_000
    if inspection_leaves_no_trace(capabilities(lab.connection)):
        assert tier.oldest_due is not None
        due = tier.oldest_due - timedelta(hours=1)
        assert before - timedelta(seconds=1) <= due <= datetime.now(timezone.utc), "the broker has whole seconds"
    else:
        assert tier.oldest_due is None


def test_the_inspection_of_a_parked_message_leaves_no_trace(lab):
    app, plan = opened(lab, tiers=["500ms"], repeat_last=True)
    broker = capabilities(lab.connection)
    lab.publish(plan.queue, headers={"id": "a"})
    returned, inspected = lab.get(plan.queue), 0
    while inspected < 2:  # on a busy machine the message may be gone before it is inspected
        lab.reject(returned)
        looks = list[int]()

        def back(looks=looks):
            looks.append(queue_status(app, lab.connection)[0].parked)
            return lab.channel.basic_get(plan.queue)

        returned = wait_for(back, "the message")
        inspected += 1 in looks
    redelivered = returned.delivery_info["redelivered"]
    if lab.queue_type == "classic" and broker.flags_returned:
        assert redelivered  # by the reject, so a worker publishes there instead
        return
    quorum = lab.queue_type == "quorum"
    assert not was_interrupted(returned.headers, redelivered=redelivered, quorum=quorum, broker=broker)


def test_the_tiers_of_a_retired_ladder_count_and_are_marked_unless_the_new_one_shares_them(lab):
    _, old = opened(lab, tiers=["1h", "3h"])
    park(lab, old, "a")
    lab.publish(old.delay_queue(2, 3 * HOUR).name)
    app = shop(lab, tiers=["1h", "2h"])
    apply_plan(lab.connection, plan_of(lab, app))
    tiers = [(tier.delay_ms, tier.parked, tier.retired) for tier in settled(lab, app, parked=2).tiers]
    assert tiers == [(HOUR, 1, False), (2 * HOUR, 0, False), (3 * HOUR, 1, True)]


def test_status_marks_missing_objects_and_declares_none(lab):
    app = shop(lab)
    plan = plan_of(lab, app)
    found = read_status(app, lab.connection)
    (queue,) = found.queues
    assert (queue.ready, queue.quarantine, found.exhausted) == (None, None, None)
    assert all(tier.missing and tier.parked == 0 for tier in queue.tiers)
    names = [plan.queue, plan.exhausted, plan.record_queue().name, *(tier.missing[0] for tier in queue.tiers)]
    assert set(ready_counts(lab.connection, names).values()) == {None}


def test_many_inspections_never_hide_the_record_from_an_apply(classic_lab):
    app, plan = opened(classic_lab)
    before = read_record(classic_lab.connection, plan.record_queue())
    for _ in range(20):
        queue_status(app, classic_lab.connection)
        assert apply_plan(classic_lab.connection, plan) is False
    assert read_record(classic_lab.connection, plan.record_queue()) == before


@pytest.mark.parametrize("count", [0, 1])
def test_the_state_is_plain_data_for_json(classic_lab, count):
    app, plan = opened(classic_lab)
    park(classic_lab, plan, *["a"] * count)
    settled(classic_lab, app, parked=count)
    data = read_status(app, classic_lab.connection).to_json()
    assert data["queues"][0]["parked"] == count
    assert data["queues"][0]["tiers"][1] == {
        "tier_index": 2,
        "delay_ms": 7_200_000,
        "parked": 0,
        "oldest_due": None,
        "due_within_ms": None,
        "retired": False,
        "missing": [],
    }
