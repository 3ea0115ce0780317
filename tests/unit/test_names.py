"""Names of broker objects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.durations import MAX_TTL_MS
from celery_rmq_delay.exceptions import SettingsError
from celery_rmq_delay.names import (
    Names,
    check_name,
    delay_queue,
    is_derived,
    origin_of,
    parse_delay_queue,
    quarantine,
    return_key,
    tier_of,
)
from tests.support.corpus import corpus

NASTY = ["a", "a.first", "a.retry", "a.retry.1", "a@1", "return", "dlx", "a.ladder", "a.ladder.12345678", "a.retry.1.x"]
queues = st.one_of(
    st.sampled_from(NASTY),
    st.lists(st.sampled_from(["a", "retry", "1", "first", "ladder", "quarantine", "10s", "@", "ü"])).map(".".join),
    st.text(min_size=1),
).filter(bool)
tiers = st.integers(1, 1000)
ttls = st.integers(1, MAX_TTL_MS)
ids = st.text("0123456789abcdef", min_size=8, max_size=8)
usable = queues.filter(lambda queue: not is_derived(queue))
types = st.sampled_from(["classic", "quorum"])
prefixes = st.sampled_from(["rmq_delay", "second", "second.retry.1", "second.quorum"])
made_of = st.tuples(usable, tiers, ttls, prefixes, types)


@given(made_of, made_of)
def test_delay_queues_that_differ_in_anything_have_different_names(first, second):
    assert (delay_queue(*first) == delay_queue(*second)) == (first == second)


@given(made_of)
def test_the_name_of_a_delay_queue_is_read_back(parts):
    assert parse_delay_queue(delay_queue(*parts)) == parts


@given(queues)
def test_no_other_name_is_read_as_that_of_a_delay_queue(name):
    parts = parse_delay_queue(name)
    assert parts is None or delay_queue(*parts) == name
    assert parse_delay_queue(quarantine(name)) is None


@given(queues, tiers, ttls, st.sampled_from(["rmq_delay", "second", "a\nb"]), types)
def test_names_of_managed_objects_are_distinguished_from_those_of_users(queue, tier_index, ttl, prefix, kind):
    assert is_derived(delay_queue(queue, tier_index, ttl, prefix, kind))
    assert is_derived(quarantine(queue))


@corpus("queue", NASTY)
def test_names_that_only_resemble_managed_ones_belong_to_users(queue):
    assert not is_derived(queue)


@given(st.tuples(queues, tiers), st.tuples(queues, tiers))
def test_return_keys_lead_to_one_queue_and_one_tier(first, second):
    assert (return_key(*first) == return_key(*second)) == (first == second)


@given(queues, tiers)
def test_the_tier_is_read_from_the_return_key_of_the_same_queue_only(queue, tier_index):
    key = return_key(queue, tier_index)
    assert tier_of(queue, key) == tier_index
    assert tier_of(f"{queue}x", key) == 0
    assert tier_of(queue, f"x{key}") == 0


@corpus("key", ["a@", "a@-1", "a@+1", "a@1.0", "a@ 1", "a@²", "a", "@", "", "b@1", "a@1@x"])
def test_other_keys_have_no_tier(key):
    assert tier_of("a", key) == 0


@given(
    st.lists(st.tuples(usable, ids, tiers), min_size=2, max_size=4, unique=True),
)
def test_exchanges_of_different_queues_ladders_and_tiers_have_different_names(parts):
    names, seen = Names("p"), {}
    for queue, ladder, tier_index in parts:
        for name, what in {
            names.returns: "returns",
            names.dlx(queue): ("dlx", queue),
            names.other(queue): ("other", queue),
            names.tasks(queue): ("tasks", queue),
            names.active(queue): ("current", queue),
            names.standby(queue): ("standby", queue),
            names.record(queue): ("record", queue),
            names.marker(queue, ladder): ("marker", queue, ladder),
            names.ladder(queue, ladder): ("ladder", queue, ladder),
            names.first(queue, ladder): ("first", queue, ladder),
            names.tier(queue, ladder, tier_index): ("tier_index", queue, ladder, tier_index),
            names.lane0(queue, ladder, tier_index): ("lane0", queue, ladder, tier_index),
        }.items():
            assert seen.setdefault(name, what) == what


def test_a_name_over_255_bytes_is_refused_with_its_size():
    assert check_name("x" * 255, "prefix") == "x" * 255
    with pytest.raises(SettingsError, match=r"prefix: found 'ü+'\. This name has 256 bytes and AMQP allows 255"):
        check_name("ü" * 128, "prefix")


@corpus("queue", ["q", "a.retry.eu", "a.retry.1.5s.b", "q.quarantine"])
@corpus("prefix", ["rmq_delay", "p.retry.1.5s"])
@corpus("kind", ["classic", "quorum"])
def test_the_name_of_a_delay_queue_contains_its_origin_queue(queue, prefix, kind):
    assert origin_of(delay_queue(queue, 2, 90_000, prefix, kind)) == queue
    assert origin_of(queue) is None
