"""Messages in the database: stored and published unchanged. Bodies are never decoded here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import amqp
from amqp import serialization

from ... import headers as h

#: Properties that are not stored: the broker sets the user, and a requeued message must not expire.
_NOT_KEPT = ("application_headers", "user_id", "expiration", "delivery_mode", "cluster_id")
#: Headers in which the broker counts redeliveries.
_COUNTED = ("x-delivery-count", "x-acquired-count")
#: The header that names the publishing process.
_PUBLISHER = "origin"


@dataclass(frozen=True)
class StoredMessage:
    """A message as the table `Payload` keeps it: the body's bytes, the headers as an AMQP table, plain properties."""

    body: bytes
    headers: bytes
    properties: dict[str, Any]


def stored(message: amqp.Message) -> StoredMessage:
    """Return a received message (of py-amqp, not kombu, which decompresses) as it is stored."""
    body = message.body
    return StoredMessage(
        body=body if isinstance(body, bytes) else str(body or "").encode("utf-8", "surrogatepass"),
        headers=serialization.dumps("F", (message.properties.get("application_headers") or {},)),
        properties={name: value for name, value in message.properties.items() if name not in _NOT_KEPT},
    )


def fingerprint(kept: StoredMessage) -> str:
    """Return a digest that identifies a message; it is the same after a redelivery."""
    headers = {name: value for name, value in headers_of(kept).items() if name not in _COUNTED}
    return _digest(kept.body, headers, repr(sorted(kept.properties.items())))


def call_digest(kept: StoredMessage) -> str:
    """Return a digest of a call: the same for messages that would run the same task in the same way.

    Where a task was exhausted twice, as after a crash, both messages have the same digest.
    """
    headers = h.original(headers_of(kept))
    headers.pop(_PUBLISHER, None)
    encoding = [kept.properties.get(name) for name in ("content_type", "content_encoding")]
    return _digest(kept.body, headers, repr(encoding))


def _digest(body: bytes, headers: Mapping[str, Any], rest: str) -> str:
    table = serialization.dumps("F", (dict(sorted(headers.items(), key=lambda header: str(header[0]))),))
    # One digest per part: different messages cannot add up to the same text.
    parts = (hashlib.sha256(part).digest() for part in (body, table, rest.encode("utf-8", "backslashreplace")))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def headers_of(kept: StoredMessage) -> dict[str, Any]:
    """Return the headers of a stored message."""
    (found,), _ = serialization.loads("F", bytes(kept.headers), 0)
    headers: dict[str, Any] = found
    return headers


def for_requeue(kept: StoredMessage, body: bytes | None = None, **changed: Any) -> amqp.Message:
    """Return the message of a requeue, which has all its retries again: same bytes and id, no dead-letter history.

    ``body`` and the headers in ``changed`` replace those of the stored message.
    """
    headers = {**h.original(headers_of(kept)), **changed}
    return amqp.Message(
        bytes(kept.body) if body is None else body,
        **{**kept.properties, "delivery_mode": 2, "application_headers": headers},
    )
