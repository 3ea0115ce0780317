"""Copies of received messages, and requeues."""

from __future__ import annotations

import logging
from typing import Any

import amqp
from amqp import spec
from kombu.compression import compress
from kombu.message import Message as ReceivedMessage

from .. import headers as h
from .capabilities import Capabilities
from .route import Route

logger = logging.getLogger(__name__)

_NOT_COPIED = ("application_headers", "expiration", "user_id")
#: Sender-selected distribution: RabbitMQ routes by these headers, too.
_ROUTING_HEADERS = ("CC", "BCC")


class _Copy(amqp.Message):  # type: ignore[misc]  # its stubs have no type for it
    """A message with final properties, which are serialized once for the check of their size and for sending."""

    _serialized: bytes | None = None

    def _serialize_properties(self) -> bytes:
        if self._serialized is None:
            self._serialized = super()._serialize_properties()
        return self._serialized


def copy_of(message: ReceivedMessage, headers: dict[str, Any]) -> amqp.Message:
    """Return a message with the body bytes and properties of a received one, and the given headers.

    Headers that would route it to other queues are left out, and so is the user id, as only that user may publish with
    it. The priority that was removed for a delay queue is restored.
    """
    properties = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
    if priority := h.priority(message.headers or {}):
        properties["priority"] = priority
    headers = {name: value for name, value in headers.items() if name not in _ROUTING_HEADERS}
    body = message.body or b""  # for an empty body py-amqp has an empty text, which it would encode
    if headers.get("compression") and not message.errors:
        body, _ = compress(body, headers["compression"])  # kombu has decompressed it on receipt
    return _Copy(
        body,
        **{
            "content_type": message.content_type,
            "content_encoding": message.content_encoding,
            **properties,
            "delivery_mode": 2,
            "application_headers": headers,
        },
    )


def parked_copy(message: ReceivedMessage, headers: dict[str, Any], route: Route, broker: Capabilities) -> amqp.Message:
    """Return a copy for the delay queues of a route, without its priority where they would deliver by it."""
    copy = copy_of(message, headers)
    if route.sorts and broker.sorts_quorum:
        h.put_priority_away(copy.properties, copy.headers)
    return copy


def nack_log_error(message: ReceivedMessage, errors: tuple[type[BaseException], ...]) -> None:
    """Requeue with ``basic.nack``: quorum queues of 4.3 count a ``basic.reject`` as a failed delivery."""
    try:
        # py-amqp has no method for it: delivery tag, multiple, requeue.
        message.channel.send_method(spec.Basic.Nack, "Lbb", (message.delivery_tag, False, True))
        message._state = "REJECTED"
    except errors:
        logger.critical("Couldn't requeue %r", message.delivery_tag, exc_info=True)
