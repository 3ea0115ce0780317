"""Plans of the topologies of exact delays, with a small model of the broker."""

import math
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_rmq_delay.amqp.objects import Objects
from celery_rmq_delay.amqp.route import Route
from celery_rmq_delay.app.exact import ExactDelays
from celery_rmq_delay.durations import MAX_TTL_MS, until_ms, whole_ms
from celery_rmq_delay.exceptions import DelayError, SettingsError
from celery_rmq_delay.headers import DUE, TO
from celery_rmq_delay.names import MAX_NAME_BYTES, Names
from celery_rmq_delay.settings.parser import parse_settings
from celery_rmq_delay.topology.exact import registry
from celery_rmq_delay.topology.exact.alternatives import LEASE_MS, Hold, Plugin, bucket
from celery_rmq_delay.topology.exact.base import Options
from celery_rmq_delay.topology.exact.levels import Levels, routing_key, word
from tests.support.brokers.topics import matches
from tests.support.corpus import corpus

QUEUES = st.text(min_size=1, max_size=80).filter(lambda name: len(name.encode()) <= MAX_NAME_BYTES)
UNITS = st.sampled_from([100, 500, 1000, 60_000])


def options(**changes):
    return Options(**{"names": Names("p"), "exhausted": "p.exhausted", **changes})


def walk(objects, route):
    """Return the delay queues that a message passes, and the queues it ends in, as RabbitMQ would route it."""
    exchanges = {exchange.name: exchange for exchange in objects.exchanges}
    queues = {queue.name: queue.arguments for queue in (*objects.queues, *route.leased)}
    passed: list[str] = []
    ended: list[str] = []
    todo = [(route.exchange, route.routing_key)]
    while todo:
        exchange, key = todo.pop()
        if not exchange:
            reached = [("queue", key)]
        else:
            kind = exchanges[exchange].delays or exchanges[exchange].type
            reached = [
                (each.to, each.destination)
                for each in objects.bindings
                if each.source == exchange
                and (kind == "fanout" or (matches(each.key, key) if kind == "topic" else each.key == key))
            ]
            if not reached and exchanges[exchange].alternate:
                reached = [("exchange", str(exchanges[exchange].alternate))]
        for to, name in dict.fromkeys(reached):
            if to == "exchange":
                todo.append((name, key))
            elif name in queues:
                passed.append(name)
                declared = queues[name]
                todo.append((declared["x-dead-letter-exchange"], declared.get("x-dead-letter-routing-key", key)))
            else:
                ended.append(name)
    return passed, ended


def waited(objects, route, passed):
    ttls = {queue.name: queue.arguments.get("x-message-ttl", 0) for queue in (*objects.queues, *route.leased)}
    return sum(ttls[name] for name in passed)


@corpus("topology", [Levels(options()), Hold(options()), Plugin(options())])
def test_messages_to_a_deleted_queue_are_exhausted(topology):
    route = topology.route(5_000, "shop")
    objects = topology.frame() + route.objects + topology.route(5_000, "other").objects
    assert walk(objects, route)[1] == ["shop"]

    without = tuple(each for each in objects.bindings if each.destination != "shop")
    assert walk(replace(objects, bindings=without), route)[1] == ["p.exhausted"]


@given(delay=st.integers(1, 2**28 * 1000 - 1000), queue=QUEUES, other=QUEUES)
@example(delay=63_000, queue="eu.shop", other="shop")
@example(delay=1, queue="a.*", other="a.b")
@example(delay=1, queue="#", other="1")
@example(delay=1000, queue="shop", other="shop.1")
def test_levels_wait_for_the_delay_rounded_up_and_end_in_the_queue_alone(delay, queue, other):
    levels = Levels(options())
    route = levels.route(delay, queue)
    objects = route.objects + levels.route(delay, other).objects
    passed, ended = walk(objects, route)
    assert ended == [queue]
    assert waited(objects, route, passed) == route.delay_ms == math.ceil(delay / 1000) * 1000
    assert len(passed) == f"{route.delay_ms // 1000:b}".count("1")


@given(delay=st.integers(1, 10**9), queue=QUEUES, unit=UNITS)
def test_a_message_can_be_published_with_the_objects_of_its_route(delay, queue, unit):
    for name in ("levels", "hold", "loop"):
        topology = registry.make(name, options(unit_ms=unit))
        route = topology.route(delay, queue)
        names = {each.name for each in route.objects.exchanges} | {""}
        queues = {each.name for each in (*route.objects.queues, *route.leased)}
        assert route.exchange in names
        assert route.exchange or route.routing_key in queues
        assert all(each.source in names for each in route.objects.bindings)
        assert delay <= route.delay_ms
        assert route.delay_ms <= topology.max_ms
        assert (route.headers[TO], type(route.headers[DUE])) == (queue, int)
        assert all(len(each.encode()) <= MAX_NAME_BYTES for each in (*queues, *names, route.routing_key))


@given(count=st.integers(1, 10**12))
def test_a_held_delay_is_exact_up_to_128_units_and_at_most_a_64th_longer_above(count):
    rounded = bucket(count)
    assert count <= rounded
    assert rounded == count or rounded - count < count / 64
    assert count > 128 or rounded == count


def test_held_delays_need_a_bounded_number_of_queues():
    assert len({bucket(count) for count in range(1, 2**17 + 1)}) <= 128 + 64 * 10


def test_a_held_queue_outlives_its_messages():
    (queue,) = Hold(options()).route(5000, "q").leased
    assert queue.arguments["x-expires"] == queue.arguments["x-message-ttl"] + LEASE_MS


@corpus("unit", [100, 1000, 60_000])
def test_no_queue_has_a_longer_ttl_than_rabbitmq_allows(unit):
    for name in ("levels", "hold", "loop"):
        topology = registry.make(name, options(unit_ms=unit))
        route = topology.route(topology.max_ms, "q")
        for queue in (*topology.frame().queues, *route.objects.queues, *route.leased):
            assert queue.arguments.get("x-message-ttl", 1) <= MAX_TTL_MS
            assert queue.arguments.get("x-expires", 1) <= MAX_TTL_MS


def test_another_unit_or_type_makes_other_queues_so_that_old_and_new_can_be_side_by_side():
    every = [
        {queue.name for queue in registry.make(name, options(unit_ms=unit, queue_type=kind)).frame().queues}
        for name in ("levels", "loop")
        for unit in (500, 1000)
        for kind in ("classic", "quorum")
    ]
    assert sum(map(len, every)) == len(set.union(*every))


def test_fewer_levels_use_the_same_queues():
    few, many = (set(Levels(options(levels=levels)).frame()) for levels in (8, 28))
    assert few < many


@given(first=QUEUES, second=QUEUES)
def test_the_words_of_two_queues_differ(first, second):
    assert (word(first) == word(second)) == (first == second)
    assert not {".", "*", "#"} & set(word(first))


def test_a_long_name_has_a_digest_for_its_word():
    assert len(routing_key("ä" * 120, 2**28 - 1)) <= MAX_NAME_BYTES
    assert word("ä" * 120) != word("ä" * 119 + "b")


@corpus(
    "seconds, milliseconds",
    [(0, 0), (-1, 0), (-math.inf, 0), (0.0001, 1), (0.3, 300), (1.1, 1100), (1.5, 1500), (2**31, 2**31 * 1000)],
)
def test_seconds_are_rounded_up_to_milliseconds_and_the_past_is_now(seconds, milliseconds):
    assert whole_ms(seconds, "countdown") == milliseconds


@corpus("wrong", [math.nan, math.inf, 10**400, "5", None, True, timedelta(seconds=5), [1]])
def test_an_invalid_delay_is_an_error_that_shows_the_value(wrong):
    with pytest.raises(DelayError, match="countdown: found"):
        whole_ms(wrong, "countdown")


def test_an_eta_is_the_time_until_then_or_now():
    assert until_ms(datetime.now(timezone.utc) - timedelta(days=1)) == 0
    before = datetime.now(timezone.utc)
    found = timedelta(milliseconds=until_ms(before + timedelta(days=1)))
    passed = datetime.now(timezone.utc) - before
    assert timedelta(days=1) - passed <= found <= timedelta(days=1, milliseconds=1)


def test_a_delay_above_the_longest_is_an_error_that_names_the_longest():
    exact = ExactDelays(parse_settings({"exact_levels": 4}), "classic")
    exact.check(15_000, "countdown", 15)
    with pytest.raises(DelayError, match=r"countdown: found 15.001. The longest delay of 'levels' .* is 15s"):
        exact.check(15_001, "countdown", 15.001)


def test_a_topology_of_ones_own_is_one_class_and_one_call():
    class Immediate:
        name, unit_ms, max_ms, consumed = "immediate", 1, 1000, None

        def __init__(self, options): ...
        def frame(self):
            return Objects()

        def route(self, delay_ms, queue):
            return Route("", queue)

        def holding(self):
            return ()

        def check(self, connection): ...

    registry.register("immediate", Immediate)
    try:
        assert registry.make("immediate", options()).route(5, "q").routing_key == "q"
        with pytest.raises(SettingsError, match="Another topology has this name"):
            registry.register("immediate", Levels)
    finally:
        registry._FACTORIES.pop("immediate")
