"""Options of connections: to the broker of an existing one, and for messages whose properties py-amqp cannot decode.

py-amqp decodes a message's properties while it reads a frame. Properties that cannot be decoded (a string that is not
UTF-8, a time beyond the year 9999, tables nested too deep) raise there. That ends the worker, and each worker that
receives the message next. RabbitMQ accepts such messages, as it does not decode all properties.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from struct import pack
from typing import Any

import amqp
import kombu
from amqp import method_framing, serialization, spec
from kombu import Connection

from ..headers import PROPERTIES

#: Seconds to wait for a reply of the broker after a signal.
INTERRUPTED = 10.0


def shorten_waits(connection: Connection) -> None:
    """Limit each further wait for a reply of the broker to `INTERRUPTED` seconds."""
    opened: Any = connection  # the stubs lack what does not connect again
    transport = getattr(opened._connection, "transport", None)
    if (sock := getattr(transport, "sock", None)) is not None:
        with suppress(OSError):  # it is closed
            sock.settimeout(INTERRUPTED)


def another(connection: Connection, **changes: Any) -> Connection:
    """Return a connection to the same broker, not yet open; a pooled connection cannot be cloned."""
    return kombu.Connection(**{**connection.info(), **changes})


def beside(connection: Connection, **changes: Any) -> Connection:
    """Return a connection, not open yet, to the host of an open one; the app's begins with the first of its hosts."""
    return another(connection, **{"alternates": None, "heartbeat": 0, **changes})


def named(options: dict[str, Any] | None, name: str) -> dict[str, Any]:
    """Return transport options for a connection that RabbitMQ shows under ``name``."""
    given = options or {}
    return {**given, "client_properties": {**(given.get("client_properties") or {}), "connection_name": name}}


def keeps_waiting(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of a connection that the kernel does not close while the broker blocks it, unlike py-amqp's."""
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return options
    return {**options, "socket_settings": {**(options.get("socket_settings") or {}), socket.TCP_USER_TIMEOUT: 0}}


_METHOD, _HEADER, _BODY = 1, 2, 3
_OnFrame = Callable[[tuple[int, int, bytes]], bool]
#: Methods that bring a message, and the arguments before its exchange and its routing key.
_BEFORE_ROUTE = {spec.Basic.Deliver: "sLb", spec.Basic.GetOk: "Lb", spec.Basic.Return: "Bs"}
_SIGNATURES = {bytes((0, method[0], 0, method[1])): method for method in _BEFORE_ROUTE}
_ARGUMENTS_AT = 4


class TolerantMessage(amqp.Message):  # type: ignore[misc]  # its stubs have no type for it
    """A message that comes with the one header `PROPERTIES` where its properties cannot be decoded."""

    def _load_properties(self, class_id: int, buf: bytes, offset: int) -> int:
        try:
            end: int = super()._load_properties(class_id, buf, offset)
        except Exception:  # noqa: BLE001 - whatever these bytes make fail, the connection lives on
            self.properties = {"application_headers": {PROPERTIES: bytes(buf[offset:])}}
            return len(buf)
        return end


def assembling(
    connection: Any, callback: Callable[..., Any], begin: Callable[[bytes], Any], receive: Callable[[int, Any], object]
) -> _OnFrame:
    """Return a ``frame_handler`` that assembles messages; py-amqp's handles the other frames.

    ``begin`` gets the payload of each method frame. It returns a message with `amqp.Message`'s ``inbound_header``,
    ``inbound_body`` and ``ready``, or None. ``receive`` gets the channel's number and each complete message.
    """
    others: _OnFrame = method_framing.frame_handler(connection, callback)
    begun: dict[int, Any] = {}

    def on_frame(frame: tuple[int, int, bytes]) -> bool:
        kind, channel, payload = frame
        if kind == _METHOD and (new := begin(payload)) is not None:
            connection.bytes_recv += 1
            begun[channel] = new
            return False
        message = begun.get(channel) if kind in (_HEADER, _BODY) else None
        if message is None:
            return others(frame)
        connection.bytes_recv += 1
        if kind == _HEADER:
            message.inbound_header(payload)
        else:
            message.inbound_body(payload)
        # A signal handler that shuts the worker down may read the connection here, and receive the message first.
        if message.ready and begun.pop(channel, None) is message:
            receive(channel, message)
        return bool(message.ready)

    return on_frame


def frame_handler(connection: Any, callback: Callable[..., Any]) -> _OnFrame:
    """Return a ``frame_handler`` for `amqp.Connection` that delivers every message, as a `TolerantMessage`."""

    def receive(channel: int, message: TolerantMessage) -> None:
        callback(channel, message.frame_method, message.frame_args, message)

    return assembling(connection, callback, _begin, receive)


def _begin(payload: bytes) -> TolerantMessage | None:
    method = _SIGNATURES.get(bytes(payload[:_ARGUMENTS_AT]))
    if method is None:
        return None
    return TolerantMessage(frame_method=method, frame_args=_decodable(method, payload))


# `inspect stats` sends a worker's transport options as JSON: kombu calls this method of an object.
setattr(frame_handler, "__json__", lambda: f"{__name__}.frame_handler")  # noqa: B010 - a function has no such attribute


def tolerant(options: dict[str, Any] | None) -> dict[str, Any]:
    """Return options by which a connection accepts undecodable properties, unless they have a handler of their own."""
    return {"frame_handler": frame_handler, **(options or {})}


def _decodable(method: tuple[int, int], payload: bytes) -> bytes:
    """Return a method's arguments; a ``?`` stands for each byte of exchange and routing key that is no UTF-8."""
    # The rule for a delivery: what follows its tags (a length and a text, 8 bytes, a bit) has no byte above 127.
    if method == spec.Basic.Deliver and bytes(payload[_ARGUMENTS_AT + payload[_ARGUMENTS_AT] + 10 :]).isascii():
        return payload
    kinds = _BEFORE_ROUTE[method]
    try:
        serialization.loads(f"{kinds}ss", payload, _ARGUMENTS_AT)
    except UnicodeDecodeError:
        _, at = serialization.loads(kinds, payload, _ARGUMENTS_AT)
        head, names = payload[:at], b""
        for _ in ("exchange", "routing key"):
            name = bytes(payload[at + 1 : at + 1 + payload[at]])
            at += 1 + len(name)
            clean = name.decode(errors="replace").replace("\N{REPLACEMENT CHARACTER}", "?").encode()
            names += pack("B", len(clean)) + clean
        return bytes(head) + names + bytes(payload[at:])
    return payload
