"""The schema of events: written events are read back, and errors name the field."""

import json
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.events import schema as events
from celery_rmq_delay.events.schema import Event, event_id, rollup_id
from celery_rmq_delay.exceptions import EventError
from tests.support.corpus import corpus

NOW = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=timezone.utc)
PARKED = Event(
    event_id=event_id("t1", 0, 1, "parked"),
    kind="parked",
    occurred_at=NOW,
    task="payments.charge",
    queue="payments",
    worker="celery@w1",
    task_id="t1",
    root_id="t0",
    attempt=1,
    max_retries=3,
    tier=2,
    delay_ms=60_000,
    due_at=NOW + timedelta(minutes=1),
    first_failed_at=NOW - timedelta(seconds=11),
    exception_type="requests.Timeout",
    exception_message="naïve “text”",
    fingerprint="0" * 16,
    ladder_ms=(10_000, 60_000, 600_000),
    args_preview="(1,)",
)
ROLLUP = Event(rollup_id("w", "t", "q", 1, "n"), "rollup", NOW, "t", "q", "w", ok_count=7)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=255)
counts = st.integers(0, 2**31 - 1)
times = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1)).map(lambda time: time.replace(tzinfo=timezone.utc))


@given(
    st.sampled_from([PARKED, ROLLUP])
    | st.builds(
        Event,
        kind=st.sampled_from([kind for kind in events.KINDS if kind != "rollup"]),
        task_id=texts,
        event_id=texts,
        occurred_at=times,
        due_at=st.none() | times,
        task=texts,
        queue=texts,
        worker=texts,
        attempt=counts,
        delay_ms=st.none() | counts,
        exception_message=st.none() | texts,
        ladder_ms=st.lists(counts, max_size=5).map(tuple),
    )
)
def test_every_event_is_read_back(event):
    assert Event.from_json(event.to_json()) == event


@corpus(
    "given",
    [{"occurred_at": "2026-01-31T14:00:00.123456+02:00"}, {"due_at": "2026-01-31T12:01:00.123456Z"}, {"colour": "red"}],
)
def test_other_zones_are_read_as_utc_and_unknown_fields_are_ignored(given):
    assert Event.from_json(json.dumps(json.loads(PARKED.to_json()) | given)) == PARKED


WRONG: dict[str, list[Any]] = {
    "version": [2, True],
    "kind": ["gone", []],
    "event_id": [None],
    "occurred_at": ["yesterday", "2026-01-31T12:00:00", "0001-01-01T00:00:00+14:00", 1],
    "due_at": ["2026-13-31T12:00:00+00:00"],
    "task": [1, "t" * 256],
    "queue": ["a\0b"],
    "worker": ["\ud800"],
    "generation": [-1, 1_000_001],
    "attempt": [-1, True, 1.0, 2**31],
    "tier": ["1"],
    "delay_ms": [2**63],
    "ladder_ms": ["1s", [1, "2"], [1] * 101],
    "exception_message": ["m" * 1001],
    "args_preview": ["a" * 301],
    "task_id": [None],
}


@corpus("field, value", [(field, value) for field, values in WRONG.items() for value in values])
def test_a_wrong_field_is_named(field, value):
    raw = json.loads(PARKED.to_json()) | {field: value}
    with pytest.raises(EventError) as raised:
        Event.from_json(json.dumps(raw))
    assert raised.value.field == field
    assert str(raised.value).startswith(f"{field}: found ")


@corpus("field", ["event_id", "kind", "occurred_at", "task", "queue", "worker", "version", "task_id", "ok_count"])
def test_a_missing_field_is_named(field):
    raw = json.loads((ROLLUP if field == "ok_count" else PARKED).to_json())
    del raw[field]
    with pytest.raises(EventError) as raised:
        Event.from_json(json.dumps(raw))
    assert raised.value.field == field


def test_an_undecodable_message_may_have_no_task_id():
    event = replace(PARKED, kind="exhausted", reason="undecodable", task_id=None)
    assert Event.from_json(event.to_json()) == event


@corpus(
    "data",
    [b"", b"[]", b"null", b"1", b"{", b"\xff\xfe", b'"' + b"x" * 20_000, b"[" * 10_000, b"9" * 5_000, b"{}", b"NaN"],
)
def test_invalid_events_are_refused(data):
    with pytest.raises(EventError):
        Event.from_json(data)


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_nothing_but_an_event_error_is_raised(data):
    with pytest.raises(EventError):
        Event.from_json(data)


@given(
    st.dictionaries(
        st.sampled_from([field.name for field in fields(Event)]),
        st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9), st.lists),
    )
)
def test_wrong_values_raise_nothing_but_an_event_error(changes):
    raw = json.dumps(json.loads(PARKED.to_json()) | changes)
    try:
        event = Event.from_json(raw)
    except EventError:
        return
    assert Event.from_json(event.to_json()) == event


def test_a_repeated_attempt_has_the_same_id_and_no_other_event_has_it():
    ids = {
        event_id(task, generation, attempt, kind)
        for task in ("a", "b")
        for generation in range(3)
        for attempt in range(12)
        for kind in events.KINDS
    }
    assert len(ids) == 2 * 3 * 12 * (len(events.KINDS) - 1)
    assert event_id("a", 0, 0, "parked") == event_id("a", 0, 0, "forwarded")
    assert event_id("a", 0, 0, "parked") in ids
    assert all(len(each) == 32 for each in ids)
    assert rollup_id("w", "t", "q", 1, "n1") != rollup_id("w", "t", "q", 1, "n2")
