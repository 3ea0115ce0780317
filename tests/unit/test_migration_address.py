"""Destination and due time of a waiting message."""

from datetime import datetime, timezone

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.transport.native_delayed_delivery import calculate_routing_key

from celery_rmq_delay import headers as h
from celery_rmq_delay.durations import aware_eta
from celery_rmq_delay.exceptions import NotUnderstoodError
from celery_rmq_delay.names import Names
from celery_rmq_delay.operations.migration.address import (
    Address,
    Destination,
    Waiting,
    celery_native_destinations,
    in_celery_native,
    in_hold,
    in_levels,
    in_loop,
    in_tier,
    original_keys,
)
from celery_rmq_delay.topology.exact.alternatives import Hold
from celery_rmq_delay.topology.exact.base import Options
from celery_rmq_delay.topology.exact.levels import Levels
from tests.support.corpus import corpus

NOW = 1_800_000_000_000
APP = Celery("shop", set_as_current=False)
TOPIC = Exchange("shop", "topic")
NAMES = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=60)
KEYS = st.lists(st.text("abc-_01", min_size=1, max_size=6), min_size=1, max_size=4).map(".".join)
LONG_NAMES = NAMES.map(lambda name: (name * 200)[:60] + "é" * 90)
OPTIONS = Options(Names("p"), "p.exhausted")


def queue(name, key=None, exchange=TOPIC):
    return Queue(name, exchange, name if key is None else key)


def celery_native(found, *queues):
    return in_celery_native(
        found,
        NOW,
        destinations=lambda keys: celery_native_destinations(list(queues), keys),
        aware=lambda eta: aware_eta(APP, eta),
    )


def death(seconds_ago, count=1, **more):
    when = datetime.fromtimestamp(NOW / 1000 - seconds_ago, timezone.utc).replace(tzinfo=None)
    return {"queue": "x", "reason": "expired", "count": count, "time": when, **more}


@given(countdown=st.integers(1, 2**28 - 1), name=NAMES, key=KEYS.filter(lambda key: key.strip("01.")), more=st.data())
def test_a_key_of_celerys_leads_to_the_queue_and_never_too_early(countdown, name, key, more):
    places = [place for place in range(28) if countdown >> place & 1]
    at = more.draw(st.sampled_from(places))
    left = countdown & (2 ** (at + 1) - 1)
    full = calculate_routing_key(countdown, key)
    found = celery_native(Waiting(f"celery_delayed_{at}", full, {"id": "a"}), queue(name, key))
    assert found == Address((Destination(name, "shop", key),), NOW + left * 1000)


@given(st.integers(1, 2**28 - 1), st.integers(1, 2**28 - 1), KEYS.filter(lambda key: key.strip("01.")))
def test_the_bits_of_former_retries_are_taken_off(first, second, key):
    bits = ".".join(f"{second:028b}")
    assert key in original_keys(f"{bits}.{calculate_routing_key(first, key)}")[:1]


@corpus(
    "countdown, key, queues, expected",
    [
        (2**28 + 1, "mails", [queue("mails")], "mails"),  # a bit too many
        (1, "1.0", [queue("q", "1.0"), queue("r", "0")], "q"),  # all bits: first tried unchanged
    ],
)
def test_a_key_whose_bits_are_not_clear_leads_to_its_queue(countdown, key, queues, expected):
    found = celery_native(Waiting("celery_delayed_0", calculate_routing_key(countdown, key), {}), *queues)
    assert found.destinations == (Destination(expected, "shop", key),)


@given(st.datetimes(datetime(1970, 1, 2), datetime(2400, 1, 1), timezones=st.just(timezone.utc)))
def test_an_eta_counts_before_the_key(eta):
    headers = {"id": "a", "eta": eta.isoformat()}
    found = celery_native(Waiting("celery_delayed_3", calculate_routing_key(9, "q"), headers), queue("q"))
    assert 0 <= found.due_ms - eta.timestamp() * 1000 < 1.001


PROTOCOL_1 = b'{"id": "a", "task": "t", "eta": "2001-09-09T01:46:40+00:00"}'


@corpus(
    "countdown, headers, body, due_ms",
    [
        (0b11, {}, PROTOCOL_1, 1_000_000_000_000),
        *((0b11, {}, body, NOW + 3000) for body in (b"", b"\x80\x04", b"[1]", b'{"eta": 5}', b"[" * 100_000)),
        (0b11, {"x-death": [death(1.5)]}, b"", pytest.approx(NOW + 2000, abs=500)),  # to the second
        (0b11, {"x-death": [death(1000, count=2)]}, b"", NOW + 3000),  # when it died first
    ],
)
def test_the_due_time_without_an_eta_header(countdown, headers, body, due_ms):
    found = celery_native(Waiting("celery_delayed_1", calculate_routing_key(countdown, "q"), headers, body), queue("q"))
    assert found.due_ms == due_ms


@corpus("key", ["", "q", "1.0.q", ".".join("0" * 28), "2." * 28 + "q", "0." * 28])
def test_a_key_without_bits_is_not_understood(key):
    with pytest.raises(NotUnderstoodError, match="does not begin with 28 bits"):
        celery_native(Waiting("celery_delayed_0", key, {}), queue("q"))


def test_a_key_that_no_queue_takes_is_not_understood():
    direct = queue("q", "q", Exchange("d", "direct"))
    with pytest.raises(NotUnderstoodError, match="no queue of the app takes the routing key 'q'"):
        celery_native(Waiting("celery_delayed_0", calculate_routing_key(1, "q"), {}), direct, Broadcast("q"))


@corpus(
    "queues, expected, key",
    [
        ([queue("a", "k"), queue("b", "x.k")], ["a"], "k"),
        ([queue("a", "k")], ["a"], "x.k"),  # a longer key that ends like a queue's is the last resort
        ([queue("a", "x.k")], [], "k"),
        ([queue("b", "k"), queue("c", "k")], ["b", "c"], "k"),
        ([queue("b", "#")], ["b"], "k"),
        ([queue("b", "*"), queue("c", "#.k")], ["b", "c"], "k"),
        ([queue("b", "k", Exchange("f", "fanout")), queue("c", "other", Exchange("f", "fanout"))], ["b", "c"], "k"),
    ],
)
def test_the_queues_that_take_a_key(queues, expected, key):
    assert [each.queue for each in celery_native_destinations(queues, [key])] == expected


@given(delay=st.integers(1, 10**9), name=NAMES)
def test_headers_have_the_due_time_of_an_exact_delay(delay, name):
    route = Levels(OPTIONS).route(delay, name)
    found = Waiting(f"{Levels(OPTIONS).level(0)}", route.routing_key, route.headers)
    expected = Address((Destination(name),), route.headers[h.DUE])
    assert in_levels(found, NOW, unit_ms=1000, queues=()) == expected
    assert in_loop(found, NOW) == expected
    assert in_hold(found, NOW, prefix="p", queues=()) == expected


@given(
    count=st.integers(1, 2**28 - 1),
    name=st.one_of(NAMES, LONG_NAMES),
    more=st.data(),
)
def test_the_routing_key_of_a_level_is_used_where_headers_are_unreadable(count, name, more):
    levels = Levels(OPTIONS)
    at = more.draw(st.sampled_from([place for place in range(28) if count >> place & 1]))
    found = Waiting(levels.level(at), levels.route(count * 1000, name).routing_key, {h.DUE: "?"})
    left = count & (2 ** (at + 1) - 1)
    expected = Address((Destination(name),), NOW + left * 1000)
    assert in_levels(found, NOW, unit_ms=1000, queues=["other", name]) == expected


@given(delay=st.integers(1, 10**9), name=st.one_of(NAMES, LONG_NAMES))
def test_the_name_of_a_hold_queue_is_used_where_headers_are_missing(delay, name):
    hold = Hold(OPTIONS)
    route = hold.route(delay, name)
    found = in_hold(Waiting(route.routing_key, route.routing_key, {}), NOW, prefix="p", queues=["other", name])
    assert found == Address((Destination(name),), NOW + route.delay_ms)


def test_a_hold_queue_of_a_fraction_of_a_second_and_a_queue_that_is_called_like_a_delay():
    found = in_hold(Waiting("p.hold.1.5s.5m.x", "", {}), NOW, prefix="p", queues=())
    assert found == Address((Destination("5m.x"),), NOW + 1500)


@corpus("key", ["", "q", "q.2", "q.1", ".1.1.1", "q.1.0.x"])
@corpus("name", ["p.hold.", "p.hold.q", "p.hold.5s.", "hold", "p.hold.5y.q"])
def test_a_key_of_no_level_and_a_name_of_no_hold_queue_are_not_understood(key, name):
    with pytest.raises(NotUnderstoodError):
        in_levels(Waiting("p.levels.1s.classic.2", key, {}), NOW, unit_ms=1000, queues=())
    with pytest.raises(NotUnderstoodError):
        in_hold(Waiting(name, "", {}), NOW, prefix="p", queues=())


@corpus("due", [None, "1", True, -1, 1.5])
@corpus("to", [None, 5, "", "q" * 256, "é" * 128])
def test_headers_that_are_not_ours_are_not_understood(due, to):
    with pytest.raises(NotUnderstoodError):
        in_loop(Waiting("loop", "loop", {h.DUE: due, h.TO: "q"}), NOW)
    with pytest.raises(NotUnderstoodError):
        in_loop(Waiting("loop", "loop", {h.DUE: 1, h.TO: to}), NOW)


def test_a_rejected_task_is_due_a_tier_after_its_rejection():
    dead = death(10, queue="q", reason="rejected", exchange="shop", **{"routing-keys": ["orders.new"]})
    found = in_tier(Waiting("q.retry.1.1m", "", {"retries": 2, "x-death": [dead]}), NOW, origin="q", ttl_ms=60_000)
    assert found.destinations == (Destination("q", "shop", "orders.new"),)
    assert found.retries == 3
    assert NOW + 50_000 <= found.due_ms <= NOW + 51_000


def test_a_task_whose_time_of_parking_is_unknown_waits_its_tier_at_most_again():
    dead = death(500, count=3, queue="q", reason="rejected")
    found = in_tier(Waiting("q.retry.3.1m", "", {"x-death": [dead]}), NOW, origin="q", ttl_ms=60_000)
    assert (found.retries, found.due_ms) == (3, NOW + 60_000)
    headers = {"retries": 1, h.EXCHANGE: "shop", h.ROUTING_KEY: "k"}  # of a published copy
    found = in_tier(Waiting("q.retry.1.1m", "q.retry.1.1m", headers), NOW, origin="q", ttl_ms=60_000)
    assert found == Address((Destination("q", "shop", "k"),), NOW + 60_000, 1)
