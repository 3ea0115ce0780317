"""Messages as the broker sends them: bytes that are decoded when somebody asks, so that none can break the connection.

py-amqp decodes properties while it reads a frame. One that cannot be decoded (a text that is no UTF-8, a time beyond
the year 9999) raises there, again and again after each new connection: nothing behind it would ever be read.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import unpack_from
from typing import Any

import amqp
from amqp import method_framing, serialization, spec

_METHOD, _HEADER, _BODY = 1, 2, 3
_DELIVER = bytes((0, spec.Basic.Deliver[0], 0, spec.Basic.Deliver[1]))
#: Class id, weight and body size stand before the properties.
_PROPERTIES_AT = 12


class Delivery:
    """One message, and where the broker sent it from."""

    __slots__ = ("_header", "_method", "_tag_end", "body", "consumer_tag", "delivery_tag")

    def __init__(self, method: bytes, header: bytes, body: bytes) -> None:
        self._method, self._header, self.body = method, header, body
        self._tag_end = 5 + method[4]
        self.consumer_tag = method[5 : self._tag_end].decode()
        (self.delivery_tag,) = unpack_from(">Q", method, self._tag_end)

    @property
    def properties(self) -> bytes:
        """The properties with the headers, as AMQP has them."""
        return self._header[_PROPERTIES_AT:]

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        return len(self.body) + len(self._header)

    def message(self) -> amqp.Message:
        """Return the message, decoded but for its body. Raises whatever py-amqp cannot decode."""
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
    """Return a ``frame_handler`` for `amqp.Connection` that gives all deliveries to ``take``, the rest to py-amqp."""

    def make(connection: Any, callback: Any) -> Callable[[Any], bool]:
        others = method_framing.frame_handler(connection, callback)
        partial: dict[int, _Partial] = {}

        def on_frame(frame: tuple[int, int, bytes]) -> bool:
            kind, channel, payload = frame
            if kind == _METHOD and payload[:4] == _DELIVER:
                connection.bytes_recv += 1
                partial[channel] = _Partial(payload)
                return False
            begun = partial.get(channel) if kind in (_HEADER, _BODY) else None
            if begun is None:
                handled: bool = others(frame)
                return handled
            connection.bytes_recv += 1
            if not begun.add(kind, payload):
                return False
            del partial[channel]
            take(Delivery(bytes(begun.method), bytes(begun.header), b"".join(begun.chunks)))
            return True

        return on_frame

    return make


class _Partial:
    """A message of which frames are still to come."""

    __slots__ = ("chunks", "header", "method", "missing")

    def __init__(self, method: bytes) -> None:
        self.method = method
        self.header = b""
        self.chunks: list[bytes] = []
        self.missing = 0

    def add(self, kind: int, payload: bytes) -> bool:
        """Add a frame; return whether the message is complete."""
        if kind == _HEADER:
            self.header = payload
            (self.missing,) = unpack_from(">Q", payload, 4)
        else:
            self.chunks.append(payload)
            self.missing -= len(payload)
        return self.missing <= 0
