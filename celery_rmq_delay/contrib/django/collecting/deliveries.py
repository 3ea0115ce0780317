"""Messages as the broker sends them: bytes that are decoded on demand, so that no message can break the connection.

py-amqp would decode the properties while it reads a frame, which the collector's events do not need.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import unpack_from
from typing import Any

import amqp
from amqp import serialization, spec

from ....amqp.connections import assembling

_DELIVER = bytes((0, spec.Basic.Deliver[0], 0, spec.Basic.Deliver[1]))
#: Class id, weight and body size stand before the properties.
_PROPERTIES_AT = 12


class Delivery:
    """One message, and the route that it took."""

    __slots__ = ("_header", "_method", "_tag_end", "body", "consumer_tag", "delivery_tag")

    def __init__(self, method: bytes, header: bytes, body: bytes) -> None:
        self._method, self._header, self.body = method, header, body
        self._tag_end = 5 + method[4]
        self.consumer_tag = method[5 : self._tag_end].decode()
        (self.delivery_tag,) = unpack_from(">Q", method, self._tag_end)

    @property
    def properties(self) -> bytes:
        """The properties with the headers, as AMQP encodes them."""
        return self._header[_PROPERTIES_AT:]

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self.body) + len(self._header)

    def message(self) -> amqp.Message:
        """Return the message, decoded except its body. Raises the errors of py-amqp's decoding."""
        message = amqp.Message(self.body)
        message.inbound_header(self._header)
        _redelivered, exchange, routing_key = self._route()
        message.delivery_info = {"exchange": exchange, "routing_key": routing_key, "delivery_tag": self.delivery_tag}
        message.properties.setdefault("application_headers", {})
        return message

    def _route(self) -> tuple[bool, str, str]:
        (redelivered, exchange, routing_key), _ = serialization.loads("bss", self._method, self._tag_end + 8)
        return redelivered, exchange, routing_key


def frame_handler(take: Callable[[Delivery], object]) -> Callable[..., Callable[[Any], bool]]:
    """Return a ``frame_handler`` for `amqp.Connection` that passes all deliveries to ``take``."""

    def make(connection: Any, callback: Any) -> Callable[[Any], bool]:
        def receive(_channel: int, found: _Incoming) -> None:
            take(Delivery(bytes(found.method), bytes(found.header), b"".join(found.chunks)))

        return assembling(connection, callback, _begin, receive)

    return make


def _begin(method: bytes) -> _Incoming | None:
    return _Incoming(method) if method[:4] == _DELIVER else None


class _Incoming:
    """A message that is being received."""

    __slots__ = ("chunks", "header", "method", "missing", "ready")

    def __init__(self, method: bytes) -> None:
        self.method, self.header, self.chunks = method, b"", list[bytes]()
        self.missing, self.ready = 0, False

    def inbound_header(self, buf: bytes) -> None:
        self.header = buf
        (self.missing,) = unpack_from(">Q", buf, 4)
        self.ready = not self.missing

    def inbound_body(self, buf: bytes) -> None:
        self.chunks.append(buf)
        self.missing -= len(buf)
        self.ready = self.missing <= 0
