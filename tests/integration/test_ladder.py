"""The ladder's objects and messages, without a worker."""

import itertools

import pytest

from celery_rmq_delay import headers as h
from celery_rmq_delay.ladders import Ladder, lane_of
from celery_rmq_delay.names import return_key
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers.delays import TICK, ttl
from tests.support.brokers.kinds import BOTH_TYPES
from tests.support.brokers.lab import HOUR
from tests.support.waiting import wait_for

pytestmark = pytest.mark.brokers


def assert_waited(returned, tiers_ms):
    """Check that these deliveries came from delay queues of these tiers, and none early."""
    assert [ttl(str(each.queue)) for each in returned] == [tier / 1000 for tier in tiers_ms]
    assert all(each.seconds >= tier / 1000 - TICK for each, tier in zip(returned, tiers_ms, strict=True))


@BOTH_TYPES
def test_a_message_advances_tier_by_tier_and_ends_exhausted(lab):
    plan = lab.applied(lab.plan(Ladder((50, 100, 200))))
    lab.publish(plan.queue)
    seen = lab.advance(plan)
    keys = [return_key(plan.queue, tier_index) for tier_index in (1, 2, 3)]
    assert [each.key for each in seen] == [plan.queue, *keys, keys[-1]]
    # The last step, into the exhausted queue, has no delay.
    assert_waited(seen[1:-1], [50, 100, 200])


@BOTH_TYPES
def test_a_message_of_any_routing_key_advances(lab):
    plan = lab.applied(lab.plan(Ladder((10, 20))))
    topic = lab.exchange("topic")
    lab.channel.queue_bind(plan.queue, topic, "#")
    for key in ("orders.created.eu", "", "a@1", "@", "x" * 255, "鍵.点.点"):
        lab.publish(key, exchange=topic)
        seen = lab.advance(plan)
        assert [each.key for each in seen] == [key, return_key(plan.queue, 1), *[return_key(plan.queue, 2)] * 2]
        assert_waited(seen[1:-1], [10, 20])


@BOTH_TYPES
def test_the_first_route_can_be_restored_on_every_tier(lab):
    plan = lab.applied(lab.plan(Ladder((5, 5, 5))))
    topic = lab.exchange("topic")
    lab.channel.queue_bind(plan.queue, topic, "#")
    lab.publish("orders.created", exchange=topic)
    for rejected in range(3):
        message = lab.get(plan.queue)
        info = message.delivery_info
        route = h.first_route(message.headers, plan.queue, info["exchange"], info["routing_key"])
        assert route == (topic, "orders.created")
        assert h.rejections(message.headers, plan.queue) == rejected
        lab.reject(message)
    lab.reject(lab.get(plan.queue))
    message = lab.get(plan.exhausted, ack=True)
    assert h.origin_queue(message.headers) == plan.queue


@BOTH_TYPES
def test_body_and_properties_survive_the_ladder(lab):
    plan = lab.applied(lab.plan(Ladder((5, 5))))
    headers = {"id": "1", "nested": {"list": [1, "two", None]}}
    lab.publish(plan.queue, "ünïcode \0 body", headers=headers, priority=3, correlation_id="c", content_type="x/y")
    for _ in range(3):
        lab.reject(lab.get(plan.queue))
    message = lab.get(plan.exhausted, ack=True)
    assert message.body == "ünïcode \0 body"
    assert h.original(message.headers) == headers
    assert {name: message.properties[name] for name in ("priority", "correlation_id", "content_type")} == {
        "priority": 3,
        "correlation_id": "c",
        "content_type": "x/y",
    }


@BOTH_TYPES
def test_a_task_advances_through_its_own_ladder_beside_the_queues(lab):
    plan = lab.applied(lab.plan(Ladder((10, 20, 30)), {"shop.ping": Ladder((100, 40)), "shop.charge": None}))
    for task, tiers in (("shop.ping", [100, 40]), ("shop.charge", [10, 20, 30]), (None, [10, 20, 30])):
        lab.publish(plan.queue, headers={"task": task} if task else {})
        assert_waited(lab.advance(plan)[1:-1], tiers)


@BOTH_TYPES
def test_jitter_spreads_messages_over_lanes_by_their_header(lab):
    ladder = Ladder((HOUR, HOUR), jitter=0.2, lanes=5)
    plan = lab.applied(lab.plan(ladder))
    lanes = [lane_of(str(number), 5) for number in range(20)]
    for lane in [*lanes, None, 99, "text"]:
        lab.publish(plan.queue, headers={} if lane is None else {h.LANE: lane})
        lab.reject(lab.get(plan.queue))
    ttls = ladder.lane_ttls(1)
    expected = {plan.delay_queue(1, ttl).name: lanes.count(lane) for lane, ttl in enumerate(ttls)}
    expected[plan.delay_queue(1, ttls[0]).name] += 3
    wait_for(lambda: lab.counts(plan) == expected, "every message in its lane")


@BOTH_TYPES
def test_a_message_keeps_its_lane_on_every_tier(lab):
    ladder = Ladder((40, 80), jitter=0.5, lanes=3)
    plan = lab.applied(lab.plan(ladder))
    for lane in range(3):
        lab.publish(plan.queue, headers={h.LANE: lane})
        assert_waited(lab.advance(plan)[1:-1], [ladder.ttl(tier_index, lane) for tier_index in (1, 2)])


@BOTH_TYPES
def test_the_last_tier_repeats_without_a_limit(lab):
    plan = lab.applied(lab.plan(Ladder((5, 15), repeat_last=True)))
    lab.publish(plan.queue)
    seen = lab.advance(plan, rounds=14)
    keys = [return_key(plan.queue, tier_index) for tier_index in (1, *[2] * 12)]
    assert [each.key for each in seen] == [plan.queue, *keys]
    assert_waited(seen[1:], [5, *[15] * 12])


@BOTH_TYPES
def test_one_tier_that_repeats_retries_without_a_limit(lab):
    plan = lab.applied(lab.plan(Ladder((20,), repeat_last=True)))
    lab.publish(plan.queue, headers={"id": "1"})
    for done in range(50):
        message = lab.get(plan.queue)
        assert h.rejections(message.headers, plan.queue) == done
        route = h.first_route(message.headers, plan.queue, "", message.delivery_info["routing_key"])
        assert route == ("", plan.queue)
        assert message.delivery_info["routing_key"] == (return_key(plan.queue, 1) if done else plan.queue)
        lab.reject(message)
    message = lab.get(plan.queue, ack=True)
    assert (h.rejections(message.headers, plan.queue), message.headers["id"]) == (50, "1")
    assert not lab.counts(plan)
    assert lab.channel.basic_get(plan.queue) is None


@BOTH_TYPES
def test_the_last_tier_repeats_on_lanes_too(lab):
    plan = lab.applied(lab.plan(Ladder((10,), jitter=0.3, lanes=2, repeat_last=True)))
    lab.publish(plan.queue, headers={h.LANE: 1})
    assert len(lab.advance(plan, rounds=6)) == 6


@BOTH_TYPES
def test_a_delay_of_hours_does_not_hold_up_the_next_message(lab):
    """One TTL per queue: a short delay never waits behind a long one."""
    plan = lab.applied(lab.plan(Ladder((30,)), {"long": Ladder((HOUR,))}))
    for task in ("long", "short"):
        lab.publish(plan.queue, task, headers={"task": task})
        lab.reject(lab.get(plan.queue))
    assert lab.get(plan.queue, ack=True).body == "short"


@BOTH_TYPES
def test_queues_of_one_prefix_keep_their_messages_apart(lab):
    names = ["a", "a.first", "a.retry.1", "return", "dlx", "a@1", "Ünïcode.日本"]
    plans = [lab.applied(lab.plan(Ladder((20, 20)), queue=f"{lab.names.prefix}-{name}")) for name in names]
    for plan in plans:
        lab.publish(plan.queue, plan.queue)
    for _ in range(3):
        for plan in plans:
            message = lab.get(plan.queue)
            assert message.body == plan.queue
            lab.reject(message)
    ended = [lab.get(plans[0].exhausted, ack=True).body for _ in plans]
    assert sorted(ended) == sorted(plan.queue for plan in plans)


# -- deaths that are no rejections -------------------------------------------------------------------------------------


@BOTH_TYPES
def test_messages_that_expire_in_the_origin_queue_are_exhausted_and_not_retried(lab):
    plan = lab.applied(lab.plan(Ladder((10,))))
    lab.publish(plan.queue, expiration="1")
    assert h.deaths(lab.get(plan.exhausted, ack=True).headers)[0]["reason"] == "expired"


def test_messages_dropped_by_a_full_origin_queue_are_exhausted_and_not_retried(classic_lab):
    lab = classic_lab
    plan = lab.applied(lab.plan(Ladder((10,))), **{"x-max-length": 1})
    lab.publish(plan.queue, "dropped")
    lab.publish(plan.queue, "kept")
    message = lab.get(plan.exhausted, ack=True)
    assert (message.body, h.deaths(message.headers)[0]["reason"]) == ("dropped", "maxlen")
    assert lab.get(plan.queue, ack=True).body == "kept"


def crash_until_exhausted(lab, plan):
    """Take the message and lose the connection until it is exhausted; return how often."""
    for crashes in itertools.count():
        connection = lab.connect()

        def taken(channel=connection.default_channel):
            return channel.basic_get(plan.queue) or lab.counts(plan).get(plan.exhausted)

        found = wait_for(taken, "the message")
        connection.collect()
        if found == 1:
            return crashes
        assert crashes < 20
    raise AssertionError


def test_a_crash_loop_at_the_delivery_limit_is_exhausted_and_not_retried(quorum_lab):
    lab = quorum_lab
    plan = lab.applied(lab.plan(Ladder((10, 10, 10))), **{"x-delivery-limit": 2})
    lab.publish(plan.queue, "poison")
    assert crash_until_exhausted(lab, plan) == 3
    message = lab.get(plan.exhausted, ack=True)
    assert (message.body, h.deaths(message.headers)[0]["reason"]) == ("poison", "delivery_limit")
    lab.publish(plan.queue, "healthy")
    assert len(lab.advance(plan)) == 5


def test_a_crash_loop_after_a_retry_is_not_lost(quorum_lab):
    lab = quorum_lab
    plan = lab.applied(lab.plan(Ladder((10, 10, 10))), **{"x-delivery-limit": 3})
    lab.publish(plan.queue, "poison")
    lab.reject(lab.get(plan.queue))
    message = lab.get(plan.queue)
    lab.channel.basic_reject(message.delivery_tag, requeue=True)
    while True:
        queue, message = lab.first_of(plan.queue, plan.exhausted)
        if queue == plan.exhausted:
            break
        lab.channel.basic_reject(message.delivery_tag, requeue=True)
    assert message.body == "poison"
    lab.channel.basic_ack(message.delivery_tag)


@BOTH_TYPES
def test_a_broker_upgrade_is_a_rebind(lab):
    """Before 3.13 RabbitMQ does not set the last death's reason; after the upgrade the same objects route by it."""
    old = lab.applied(lab.plan(Ladder((10, 10)), reason_routing=False))
    lab.publish(old.queue)
    assert len(lab.advance(old)) == 4
    lab.publish(old.queue, expiration="1")
    assert lab.get(old.exhausted, ack=True)
    if not lab.reports_death_reason:
        return
    new = lab.plan(Ladder((10, 10)))
    for plan in (new, old, new):
        apply_plan(lab.connection, plan)
        lab.publish(plan.queue)
        assert len(lab.advance(plan)) == 4
        lab.publish(plan.queue, expiration="1")
        assert lab.get(plan.exhausted, ack=True)
        assert not lab.counts(plan)


@BOTH_TYPES
def test_messages_from_another_delay_queue_advance_when_they_are_rejected(lab):
    """Their first death was no rejection and in no managed queue."""
    plan = lab.applied(lab.plan(Ladder((10,))))
    before = lab.queue(**{"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": plan.queue})
    lab.publish(before)
    assert [each.key for each in lab.advance(plan)] == [plan.queue, *[return_key(plan.queue, 1)] * 2]
