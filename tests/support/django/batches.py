"""Messages as frames, and the collector's writer of them."""

from __future__ import annotations

import threading
from struct import pack

import amqp

from celery_rmq_delay.contrib.django.collecting.batches import Writer
from celery_rmq_delay.contrib.django.collecting.consumer import Delivery
from celery_rmq_delay.contrib.django.collecting.database import Database
from celery_rmq_delay.contrib.django.collecting.facts import Reader
from celery_rmq_delay.contrib.django.collecting.gathering import History
from celery_rmq_delay.events.schema import Event
from celery_rmq_delay.redaction import DEFAULT

QUEUE = "rmq_delay.events"


def method(delivery_tag: int = 1, tag: bytes = b"rmq-delay-0", key: bytes = b"q") -> bytes:
    """Return the frame that begins a delivery."""
    return pack(">HHB", 60, 60, len(tag)) + tag + pack(">QBBB", delivery_tag, 0, 0, len(key)) + key


def delivery(body: bytes, delivery_tag: int = 1, properties: bytes = b"\0\0", key: bytes = b"q") -> Delivery:
    """Return a delivery as the broker writes it."""
    return Delivery(method(delivery_tag, key=key), pack(">HHQ", 60, 0, len(body)) + properties, body)


def carried(message: amqp.Message, delivery_tag: int = 1) -> Delivery:
    """Return the delivery of a message with its properties and headers."""
    return delivery(message.body, delivery_tag, message._serialize_properties())


def batch(*events: Event) -> list[tuple[str, Delivery]]:
    """Return the deliveries of events."""
    return [(QUEUE, delivery(each.to_json(), number)) for number, each in enumerate(events, 1)]


def writer(
    *, stop: threading.Event | None = None, database: Database | None = None, history: History | None = None
) -> Writer:
    """Return a writer of the events' queue."""
    return Writer(Reader(QUEUE, DEFAULT), database or Database(), stop or threading.Event(), history)
