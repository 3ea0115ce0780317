"""Fuzz targets: functions that process bytes of untrusted producers, and raise only documented exceptions."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from struct import pack

from django.conf import settings as django_settings

from celery_rmq_delay import headers as h
from celery_rmq_delay.amqp.connections import TolerantMessage
from celery_rmq_delay.durations import format_ms, parse_ms
from celery_rmq_delay.events.fingerprint import fingerprint, normalise_message, top_frame
from celery_rmq_delay.events.schema import Event
from celery_rmq_delay.exceptions import EventError, SettingsError, UnreadableError
from celery_rmq_delay.history.url import problem_of, shown
from celery_rmq_delay.operations.exhausted import describe
from celery_rmq_delay.redaction import DEFAULT
from celery_rmq_delay.settings.parser import parse_settings
from celery_rmq_delay.worker.intake import check, check_payload

Target = Callable[[bytes], None]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")  # halves of characters, too


def properties(data: bytes) -> None:
    """Read ``data`` as the properties of a message, and copy the message."""
    message = TolerantMessage()
    message.inbound_header(pack(">HHQ", 60, 0, 0) + data)
    headers = message.properties.get("application_headers") or {}
    assert 0 <= h.retries(headers, "q") <= h.MAX_COUNT
    again = h.forwarded(headers, retries=1, exchange="", routing_key="q", more={h.ATTEMPTS: 2})
    message.properties["application_headers"] = h.replayed(again)
    assert message._serialize_properties()
    describe(message)
    h.first_death(headers)
    h.exact_address(headers)
    with suppress(UnreadableError):
        check(headers)


def delivery(data: bytes) -> None:
    """Read ``data`` as a delivery to the collector: the first two bytes are the length of the properties."""
    from celery_rmq_delay.contrib.django.collecting.consumer import Delivery
    from celery_rmq_delay.contrib.django.collecting.facts import Fact, Reader
    from celery_rmq_delay.contrib.django.messages import for_requeue

    length = int.from_bytes(data[:2], "big")
    found, body = data[2 : 2 + length], data[2 + length :]
    method = pack(">HH", 60, 60) + b"\x01a" + pack(">Q", 7) + b"\0\0\x01q"
    came = Delivery(method, pack(">HHQ", 60, 0, len(body)) + found, body)
    read = Reader("events", DEFAULT).read("exhausted", came)
    if isinstance(read, Fact) and read.message is not None:
        assert read.message.body == body
        assert for_requeue(read.message)._serialize_properties()


def event(data: bytes) -> None:
    """Read ``data`` as an event; writing and reading it again must not change it."""
    try:
        found = Event.from_json(data)
    except EventError:
        return
    assert Event.from_json(found.to_json()) == found


def payload(data: bytes) -> None:
    """Read ``data`` as a decoded body."""
    with suppress(ValueError, RecursionError, UnreadableError):
        check_payload(json.loads(data))


def text(data: bytes) -> None:
    """Redact a text and compute its fingerprint."""
    found = _text(data)
    assert len(DEFAULT.text(found)) <= 10_000
    normalise_message(found)
    fingerprint(found[:100], found, top_frame(found))


def settings(data: bytes) -> None:
    """Read ``data`` as JSON of settings, as a delay and as a place for history."""
    found = _text(data)
    problem_of(found)
    shown(found)
    with suppress(SettingsError):
        assert parse_ms(format_ms(parse_ms(found, "tiers")), "tiers")
    with suppress(SettingsError, ValueError, RecursionError):
        parse_settings(json.loads(data))


TARGETS: dict[str, Target] = {each.__name__: each for each in (properties, delivery, event, payload, text, settings)}


def prepare() -> None:
    """Configure Django for the collector's modules."""
    import django

    from tests.support.django import settings as test_settings

    if not django_settings.configured:
        django_settings.configure(**{name: value for name, value in vars(test_settings).items() if name.isupper()})
    django.setup()
