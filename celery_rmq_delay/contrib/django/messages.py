"""Messages in the database: kept as they came, published again as they were. No body is ever decoded here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import amqp
from amqp import serialization

from ... import headers as h

#: The broker's: it stamps the user itself, and a new life starts with no expiry of an old delay queue.
_NOT_KEPT = ("application_headers", "user_id", "expiration", "delivery_mode", "cluster_id")


@dataclass(frozen=True)
class StoredMessage:
    """A message as the table `Payload` keeps it: the body's bytes, the headers as an AMQP table, plain properties."""

    body: bytes
    headers: bytes
    properties: dict[str, Any]


def stored(message: amqp.Message) -> StoredMessage:
    """Return a received message (of py-amqp, not kombu's, which decompresses) as it is to be kept."""
    body = message.body
    return StoredMessage(
        body=body if isinstance(body, bytes) else str(body or "").encode("utf-8", "surrogatepass"),
        headers=serialization.dumps("F", (message.properties.get("application_headers") or {},)),
        properties={name: value for name, value in message.properties.items() if name not in _NOT_KEPT},
    )


def headers_of(kept: StoredMessage) -> dict[str, Any]:
    """Return the headers of a kept message."""
    (found,), _ = serialization.loads("F", bytes(kept.headers), 0)
    headers: dict[str, Any] = found
    return headers


def for_requeue(kept: StoredMessage, body: bytes | None = None, **changed: Any) -> amqp.Message:
    """Return the message that starts a fresh ladder: same bytes and id, without dead-letter history.

    ``body`` and the headers in ``changed`` are what somebody has edited.
    """
    headers = {**h.original(headers_of(kept)), **changed}
    return amqp.Message(
        bytes(kept.body) if body is None else body,
        **{**kept.properties, "delivery_mode": 2, "application_headers": headers},
    )
