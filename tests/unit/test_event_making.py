"""The fast encoder of the worker agrees with the schema for any message."""

import traceback as tracebacks
from datetime import datetime, timedelta, timezone
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Retry
from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay import RetryableTask
from celery_rmq_delay import headers as h
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.events.encode import EventMaker, PendingEvent, Waits
from celery_rmq_delay.events.schema import MAX_BYTES, Event, digest_id, event_id
from celery_rmq_delay.retry.delivery import KEY, Delivery, RetryPath
from tests.support.apps import app_of

AT = 1_769_860_800_123_456
NOW = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=timezone.utc)
ON_TIER_2 = Waits(2, None, in_delay_queue=True)


class Lost(Exception):
    pass


@cache
def app():
    found = app_of({"tiers": ["10s", "1m"], "redact": {"keys": ["plate"]}})

    @found.task(base=RetryableTask, name="charge", shared=False)
    def charge(): ...

    return found


@pytest.fixture
def task():
    return app().tasks["charge"]


@pytest.fixture
def maker():
    return EventMaker(state_of(app()), "celery@w")


def request(task, **changes):
    raw: dict[str, Any] = {"id": "t1", "task": "charge", "retries": 0, "argsrepr": "()", "kwargsrepr": "{}", **changes}
    info = {"exchange": raw.pop("exchange", ""), "routing_key": raw.pop("routing_key", "celery")}
    return SimpleNamespace(
        _request_dict={**raw, KEY: Delivery(raw.pop("queue", "celery"), 0, None, RetryPath.REJECT)},
        _message=SimpleNamespace(delivery_info=info),
        flight=SimpleNamespace(headers=raw),
        id=raw["id"],
        task=task,
        argsrepr=raw["argsrepr"],
        kwargsrepr=raw["kwargsrepr"],
        time_start=AT / 1e6 - 2,
    )


def test_an_event_has_the_facts_of_request_ladder_and_failure(maker, task):
    asked = request(
        task, retries=1, root_id="r", parent_id="p", group="g", argsrepr="({'plate': 'B-1'},)", kwargsrepr="{'a': 1}",
        exchange="orders", routing_key="orders.eu",
        **{h.GENERATION: 2, h.CRASHES: 1, h.FIRST_FAILED: "2026-01-31T11:00:00.000+00:00"},
    )  # fmt: skip
    text = 'Traceback (most recent call last):\n  File "/srv/shop/tasks.py", line 3, in charge\nLost: order 17\n'
    event = Event.from_json(maker.of_task(PendingEvent("parked", AT, asked, Lost("order 17"), text, ON_TIER_2)))
    assert event == Event(
        event_id=event_id("t1", 2, 1, "parked"),
        kind="parked",
        occurred_at=NOW,
        task="charge",
        queue="celery",
        worker="celery@w",
        task_id="t1",
        root_id="r",
        parent_id="p",
        group_id="g",
        exchange="orders",
        routing_key="orders.eu",
        generation=2,
        attempt=1,
        max_retries=2,
        tier=2,
        delay_ms=60_000,
        due_at=NOW + timedelta(minutes=1),
        delay_queue="celery.retry.2.1m",
        first_failed_at=NOW - timedelta(hours=1, microseconds=123456),
        started_at=event.started_at,
        runtime_ms=event.runtime_ms,
        exception_type=f"{__name__}.Lost",
        exception_message="order 17",
        fingerprint=event.fingerprint,
        frame="shop/tasks.py:charge",
        crashes=1,
        ladder_ms=(10_000, 60_000),
        args_preview="({'plate': [redacted]},)",
        kwargs_preview="{'a': 1}",
    )
    assert event.started_at is not None
    assert abs(event.started_at - (NOW - timedelta(seconds=2))) < timedelta(milliseconds=1)
    assert event.runtime_ms in (1999, 2000, 2001)


def test_the_first_failure_comes_from_the_attempt_the_deaths_or_the_header(maker, task):
    died = [{"queue": "celery", "reason": "rejected", "time": datetime(2026, 1, 31, 11), "count": 1}]
    firsts = [
        Event.from_json(maker.of_task(PendingEvent("parked", AT, request(task, **raw), Lost()))).first_failed_at
        for raw in ({}, {"retries": 1, "x-death": died}, {"retries": 1}, {"retries": 1, h.FIRST_FAILED: "long ago"})
    ]
    assert firsts == [NOW, NOW - timedelta(hours=1, microseconds=123456), None, None]


def test_an_event_names_the_place_where_a_task_waits_as_far_as_it_is_known(maker, task):
    found = [
        Event.from_json(maker.of_task(PendingEvent("forwarded", AT, request(task), Lost(), None, waits)))
        for waits in (Waits(1, None, in_delay_queue=False), Waits(1, 7_000, in_delay_queue=True))
    ]
    assert [(event.tier, event.delay_ms, event.delay_queue) for event in found] == [
        (1, 10_000, None),
        (None, 7_000, None),
    ]
    assert [event.due_at for event in found] == [NOW + timedelta(seconds=10), NOW + timedelta(seconds=7)]


HOSTILE = (
    '"', "\\", "\0", "\ud800", "\x1f\x7f", "‮", "😀" * 300, "x" * 1_000_000, "{'token': '" * 1000, "</script>",
    "\n" * 999,
)  # fmt: skip
hostile = st.text(max_size=400) | st.sampled_from(HOSTILE)


@given(hostile, hostile, hostile, hostile, st.integers() | hostile)
def test_every_event_of_a_hostile_message_can_be_read(name, text, args, route, number):
    task, made = app().tasks["charge"], EventMaker(state_of(app()), text)
    asked = request(
        task, id=name, root_id=text, parent_id=args, group=number, argsrepr=args, kwargsrepr=text,
        exchange=route, routing_key=route, **{h.GENERATION: number, h.CRASHES: number, h.FIRST_FAILED: number},
    )  # fmt: skip
    body = made.of_task(PendingEvent("parked", AT, asked, Lost(text), text, Waits(1, None, in_delay_queue=True)))
    event = Event.from_json(body)
    assert len(body) <= MAX_BYTES
    assert (event.kind, event.due_at) == ("parked", NOW + timedelta(seconds=10))


def test_an_exception_without_a_text_still_has_an_event(maker, task):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("lost on the way")

    event = Event.from_json(maker.of_task(PendingEvent("parked", AT, request(task), Mute())))
    assert event.exception_message == "<no text: RuntimeError>"


def test_a_real_traceback_of_a_retry_and_of_the_last_failure_lead_to_one_fingerprint(maker, task):
    def text_of(number, *, retried):
        try:
            try:
                raise Lost(f"order {number}")
            except Lost:
                if retried:
                    raise Retry("Retry in 10s")  # noqa: B904 - as Task.retry raises it
                raise
        except (Lost, Retry) as error:
            return "".join(tracebacks.format_exception(error))

    found = []
    for number, retried in ((1, True), (2, False)):
        attempt = PendingEvent("parked", AT, request(task), Lost(f"order {number}"), text_of(number, retried=retried))
        found.append(Event.from_json(maker.of_task(attempt)))
    assert found[0].fingerprint == found[1].fingerprint
    assert found[0].frame == "unit/test_event_making.py:text_of"


def test_rollups_and_undecodable_messages_have_events(maker):
    rollup = Event.from_json(maker.of_successes("charge", "celery", AT // 10_000_000, 7, "n"))
    assert (rollup.kind, rollup.task, rollup.ok_count, rollup.occurred_at.second % 10) == ("rollup", "charge", 7, 0)
    assert rollup.occurred_at <= NOW

    cases: list[tuple[dict[str, Any], dict[str, Any], int]] = [
        ({}, {}, 0),
        ({"id": "t1", "task": "charge", "retries": 2}, {}, 2),
        ({}, {"correlation_id": "t1"}, 0),
        ({"id": "t1", "x-death": [{"queue": "celery", "reason": "rejected", "count": 3}, 7], "retries": "x"}, {}, 3),
    ]
    for raw, properties, attempt in cases:
        route = {"exchange": "", "routing_key": "celery"}
        message: Any = SimpleNamespace(properties=properties, body=b"\xff{", delivery_info=route)
        event = Event.from_json(
            maker.of_undecodable(message, raw, "celery", ValueError("password=hunter2"), AT, "undecodable")
        )
        known = bool(raw or properties)
        assert event.task_id == ("t1" if known else None)
        assert event.event_id == (event_id("t1", 0, attempt, "exhausted") if known else digest_id(b"\xff{"))
        assert event.attempt == attempt
        assert (event.reason, event.queue, event.exception_message) == ("undecodable", "celery", "password=[redacted]")


def test_an_event_is_of_the_life_that_its_message_names(maker, task):
    asked = request(task, **{h.GENERATION: 1, h.LIFE: "0123abcd"})
    event = Event.from_json(maker.of_task(PendingEvent("recovered", AT, asked)))
    assert (event.life, event.event_id) == ("0123abcd", event_id("t1", 1, 0, "recovered", "0123abcd"))
    assert event.event_id != event_id("t1", 1, 0, "recovered")
