"""Additional connections to the broker of an existing one."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import kombu

if TYPE_CHECKING:
    from kombu import Connection


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
    """Return a connection to the host that an open one is connected to, not yet open.

    A connection of the app tries the first hosts of a fail-over list, which may be down, and gives up after two.
    """
    return another(connection, **{"alternates": None, "heartbeat": 0, **changes})


def named(options: dict[str, Any] | None, name: str) -> dict[str, Any]:
    """Return transport options for a connection that RabbitMQ shows under ``name``."""
    given = options or {}
    return {**given, "client_properties": {**(given.get("client_properties") or {}), "connection_name": name}}


def keeps_waiting(options: dict[str, Any]) -> dict[str, Any]:
    """Return transport options for a connection that stays open while the broker blocks it for long.

    By default py-amqp lets the kernel close a connection that cannot transmit its data for a second.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return options
    return {**options, "socket_settings": {**(options.get("socket_settings") or {}), socket.TCP_USER_TIMEOUT: 0}}
