"""Connections beside one that is open."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import kombu

if TYPE_CHECKING:
    from kombu import Connection


def another(connection: Connection, **changes: Any) -> Connection:
    """Return a connection to the same broker, not yet open; a pooled one cannot be cloned."""
    return kombu.Connection(**{**connection.info(), **changes})


def beside(connection: Connection, **changes: Any) -> Connection:
    """Return a connection to the very host that an open one is connected to, not yet open.

    One that the app makes begins with the first hosts of a fail-over list, which may be down, and gives up after two.
    """
    return another(connection, **{"alternates": None, "heartbeat": 0, **changes})


def keeps_waiting(options: dict[str, Any]) -> dict[str, Any]:
    """Return the transport options of a connection that may be blocked by the broker for long without being cut.

    py-amqp lets the kernel cut one that does not get rid of its bytes for a second.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return options
    return {**options, "socket_settings": {**(options.get("socket_settings") or {}), socket.TCP_USER_TIMEOUT: 0}}
