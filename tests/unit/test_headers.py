"""Headers with the history of earlier attempts, from any source."""

from datetime import datetime, timezone

from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay import headers as h
from tests.support.corpus import corpus


def death(count, reason, queue, second, exchange, key):
    at = datetime(2026, 5, 1, 12, 0, second)
    return {
        "count": count, "reason": reason, "queue": queue, "time": at, "exchange": exchange, "routing-keys": [key],
    }  # fmt: skip


#: In RabbitMQ's format: a message that was rejected twice from `q`, newest entry first.
ADVANCED = {
    "task": "shop.charge",
    "id": "1",
    "retries": 0,
    "x-death": [
        death(2, "rejected", "q", 1, "orders", "orders.created"),
        death(1, "expired", "q.retry.2.1m", 2, "", "q@1"),
        death(1, "expired", "q.retry.1.10s", 0, "", "orders.created"),
    ],
    "x-first-death-exchange": "orders",
    "x-first-death-queue": "q",
    "x-first-death-reason": "rejected",
    "x-last-death-exchange": "rmq_delay.return",
    "x-last-death-queue": "q.retry.2.1m",
    "x-last-death-reason": "expired",
    "x-delivery-count": 2,
    "x-acquired-count": 2,
}

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.datetimes()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=6,
)
publishers = st.dictionaries(st.text().filter(lambda name: not name.startswith(("x-", h.PREFIX))), values, max_size=6)


def test_rejections_are_counted_by_queue():
    assert h.rejections(ADVANCED, "q") == 2
    assert h.rejections(ADVANCED, "q", "q.quarantine") == 2
    assert h.rejections(ADVANCED, "other") == 0
    assert h.rejections({}, "q") == 0
    assert h.all_rejections(ADVANCED) == 2


def test_the_first_route_is_restored_from_the_history():
    assert h.first_route(ADVANCED, "q", "rmq_delay.return", "q@2") == ("orders", "orders.created")
    assert h.first_route(ADVANCED, "other", "x", "k") == ("x", "k")
    assert h.first_route({h.EXCHANGE: "e", h.ROUTING_KEY: "k", **ADVANCED}, "q", "", "q") == ("e", "k")


@given(publishers, st.integers(0, 50))
def test_a_forwarded_copy_can_be_made_the_original_again(headers, retries):
    published = {"retries": 3, **headers} if retries % 2 else headers
    copy = h.forwarded(
        {**published, **{name: value for name, value in ADVANCED.items() if name.startswith("x-")}},
        retries=retries,
        exchange="orders",
        routing_key="key",
        more={h.CRASHES: 2, h.TRACEBACK: None, h.QUEUE: "q"},
    )
    assert not any(name.startswith("x-") for name in copy)
    assert copy["retries"] == retries
    assert copy[h.CRASHES] == 2
    assert h.TRACEBACK not in copy
    again = h.forwarded(copy, retries=retries + 1, exchange="orders", routing_key="key", more={})
    for each in (copy, again):
        original = h.original(each)
        if "retries" in published:
            assert original == published
        else:
            assert {**original, "retries": 0} == {**published, "retries": 0}


def test_the_lane_stays_with_the_original():
    assert h.original({h.LANE: 3, h.QUEUE: "q", "task": "t"}) == {h.LANE: 3, "task": "t"}


def test_a_republished_history_would_look_like_a_cycle_and_is_removed():
    assert h.without_dead_letters(ADVANCED) == {"task": "shop.charge", "id": "1", "retries": 0}
    assert h.without_dead_letters({"x-mine": 1, "x-death-row": 2}) == {"x-mine": 1, "x-death-row": 2}


@corpus(
    "headers, queue",
    [
        (ADVANCED, "q"),
        ({h.QUEUE: "other", **ADVANCED}, "other"),
        ({"x-death": [{"queue": "q.quarantine", "reason": "rejected"}]}, "q"),
        ({"x-death": [{"queue": "q", "reason": "delivery_limit"}]}, "q"),
        ({"x-death": [{"queue": "q", "reason": "expired"}]}, "q"),
        ({}, None),
        ({"x-death": "junk"}, None),
    ],
)
def test_the_origin_queue_of_an_exhausted_message_is_known(headers, queue):
    assert h.origin_queue(headers) == queue


def test_the_first_death_is_the_oldest():
    assert h.first_death(ADVANCED) == datetime(2026, 5, 1, 12, 0, 0, tzinfo=timezone.utc)
    assert h.first_death({}) is None


@given(st.text(st.sampled_from("ab\n"), max_size=100), st.integers(1, 50))
def test_bounded_text_keeps_its_end_and_states_how_much_is_left_out(text, limit):
    found = h.bounded(text, limit)
    if len(text) <= limit:
        assert found == text
    else:
        note, _, end = found.partition("]")
        assert note == f"[{len(text) - len(end)} characters left out"
        assert text.endswith(end)
        assert 0 < len(end) <= limit
        assert "\n" not in end[:-1] or text[: -len(end)].endswith("\n")


def test_a_bounded_traceback_does_not_begin_in_the_middle_of_a_line():
    assert h.bounded("password='hunter2'\nValueError: no", 24) == "[19 characters left out]ValueError: no"


@given(st.text(st.characters(codec=None)))
def test_printable_text_can_travel_in_amqp(text):
    found = h.printable(text)
    assert "\0" not in found
    assert found.encode().decode() == found
    assert len(found) == len(text)


def test_every_replay_is_the_next_generation():
    headers = {"id": "a", "retries": 0, "lang": "py"}
    first = h.replayed(h.forwarded(headers, retries=3, exchange="", routing_key="q", more={h.QUEUE: "q"}))
    assert first == {**headers, h.GENERATION: 1}
    second = h.replayed(h.forwarded(first, retries=3, exchange="", routing_key="q", more={h.QUEUE: "q"}))
    assert second == {**headers, h.GENERATION: 2}


@corpus("value", [0, -1, h.MAX_GENERATION + 1, 2**31 - 1, 2**63 - 1, True, None, 1.5, "2", [], {}])
def test_a_generation_that_no_requeue_has_set_counts_as_none(value):
    assert h.generation({h.GENERATION: value}) == 0
    assert h.replayed({h.GENERATION: value}) == {h.GENERATION: 1}


def test_the_last_generation_is_used_again():
    last = h.replayed({h.GENERATION: h.MAX_GENERATION})
    assert last == h.replayed(last) == {h.GENERATION: h.MAX_GENERATION}


def test_a_replay_stays_in_the_life_that_its_message_names():
    headers = {"id": "a", h.GENERATION: 1, h.LIFE: "0123abcd", h.QUEUE: "q"}
    assert h.replayed(headers) == {"id": "a", h.GENERATION: 2, h.LIFE: "0123abcd"}


@corpus("value", [None, "", 7, b"first", ["first"], "x" * 33, "a\0", "grün", "a\n"])
def test_an_invalid_life_is_read_as_none(value):
    assert h.life({h.LIFE: value}) is None


@corpus(
    "expires, is_past",
    [
        ("2026-01-31T12:00:00+00:00", True),
        ("2026-01-31T12:00:00", True),
        ("2026-01-31T12:00:00.123456Z", True),
        ("2126-01-31T12:00:00Z", False),
        *((value, False) for value in (None, "", "soon", 0, {}, b"2026-01-31", "0001-01-01T00:00:00+23:59")),
    ],
)
def test_a_task_has_expired_when_its_expires_is_a_time_that_is_past(expires, is_past):
    assert h.has_expired({"expires": expires}) is is_past
    assert h.has_expired({}) is False


def test_a_copy_drops_headers_set_to_none_and_keeps_empty_headers_of_others():
    found = h.forwarded({h.CRASHES: 2, "tenant": None}, retries=1, exchange="", routing_key="q", more={h.CRASHES: None})
    assert h.CRASHES not in found
    assert found["tenant"] is None
