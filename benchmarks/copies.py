"""Publish copies of a message under other ids, with confirms: 100,000 single calls would take minutes."""

from __future__ import annotations

import json
import socket
import uuid
from itertools import takewhile
from typing import Any, NamedTuple

import amqp
import kombu

#: Most unconfirmed messages.
_WINDOW = 500
#: A timeout in milliseconds; py-amqp uses one second, which is too short for a broker that throttles fast publishers.
_UNACKNOWLEDGED = {socket.TCP_USER_TIMEOUT: 120_000}
_TIMEOUT = 60.0


class Template(NamedTuple):
    """A message to copy, and the route of its copies."""

    message: amqp.Message
    exchange: str
    routing_key: str


def copy_of(message: amqp.Message, **properties: Any) -> amqp.Message:
    """Return a task's message under another id: Celery's in its headers, others' in the body; ``properties`` change."""
    old, new = identity(message), str(uuid.uuid4())
    if len(old) != len(new):
        new = new.replace("-", "")[: len(old)]
    headers = {name: new if value == old else value for name, value in (message.headers or {}).items()}
    kept = {name: new if value == old else value for name, value in message.properties.items()}
    body = message.body if isinstance(message.body, bytes) else message.body.encode()
    kept |= {"application_headers": headers, **properties}
    return amqp.Message(body.replace(old.encode(), new.encode()), **kept)


def identity(message: amqp.Message) -> str:
    """Return the id of a task's message: of Celery, dramatiq or taskiq."""
    found = (message.headers or {}).get("id")
    if found is None:
        body = json.loads(message.body)
        found = body.get("message_id") or body["task_id"]
    return str(found)


class Copies:
    """A context manager that publishes copies; at its end all are confirmed, or it raises `RuntimeError`."""

    def __init__(self, url: str) -> None:
        options = {"confirm_publish": False, "socket_settings": _UNACKNOWLEDGED}
        self._connection = kombu.Connection(url, transport_options=options)

    def __enter__(self) -> Copies:
        self._channel: Any = self._connection.channel()
        self._channel.confirm_select()
        self._channel.events["basic_ack"].add(self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._sent = self._refused = 0
        self._open: dict[int, None] = {}  # in the order of their tags
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        while self._open and kind is None:
            self._connection.drain_events(timeout=_TIMEOUT)
        self._connection.close()
        if self._refused:
            raise RuntimeError(f"the broker refused {self._refused} of {self._sent} messages")

    def publish(self, template: Template, **properties: Any) -> None:
        """Publish one copy; wait if too many are not confirmed yet."""
        copied = copy_of(template.message, **properties)
        self._channel.basic_publish(copied, template.exchange, template.routing_key)
        self._sent += 1
        self._open[self._sent] = None
        while len(self._open) > _WINDOW:
            self._connection.drain_events(timeout=_TIMEOUT)

    def _on_nack(self, delivery_tag: int, multiple: bool) -> None:
        before = len(self._open)
        self._on_ack(delivery_tag, multiple)
        self._refused += before - len(self._open)

    def _on_ack(self, delivery_tag: int, multiple: bool) -> None:
        tags = list(takewhile(lambda tag: tag <= delivery_tag, self._open)) if multiple else [delivery_tag]
        for tag in tags:
            self._open.pop(tag, None)
