"""Messages in the database: kept as they came, published again as they were. No body is ever decoded here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import amqp
from amqp import serialization

from ... import headers as h

#: The broker's: it stamps the user itself, and a new life starts with no expiry of an old delay queue.
_NOT_KEPT = ("application_headers", "user_id", "expiration", "delivery_mode", "cluster_id")
#: What a broker counts in a message that it delivers again.
_COUNTED = ("x-delivery-count", "x-acquired-count")
#: The process that published a message.
_PUBLISHER = "origin"


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


def fingerprint(kept: StoredMessage) -> str:
    """Return what tells a message from all others, and is the same when the broker delivers it again."""
    headers = {name: value for name, value in headers_of(kept).items() if name not in _COUNTED}
    return _digest(kept.body, headers, repr(sorted(kept.properties.items())))


def call_digest(kept: StoredMessage) -> str:
    """Return what tells a call from others: the same for messages that would run the same task in the same way.

    Of a task that was exhausted twice, as after a crash, both messages have the same.
    """
    headers = h.original(headers_of(kept))
    headers.pop(_PUBLISHER, None)
    encoding = [kept.properties.get(name) for name in ("content_type", "content_encoding")]
    return _digest(kept.body, headers, repr(encoding))


def _digest(body: bytes, headers: Mapping[str, Any], rest: str) -> str:
    table = serialization.dumps("F", (dict(sorted(headers.items(), key=lambda header: str(header[0]))),))
    # Each part has its digest: no two messages are one and the same text.
    parts = (hashlib.sha256(part).digest() for part in (body, table, rest.encode("utf-8", "backslashreplace")))
    return hashlib.sha256(b"".join(parts)).hexdigest()


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
