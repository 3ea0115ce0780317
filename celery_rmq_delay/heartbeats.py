"""Celery's own events, a worker's heartbeat among them, wait for no answer of the broker.

They go over a connection of their own, from the event loop. In a memory or disk alarm RabbitMQ reads nothing more from
it: with ``confirm_publish`` the loop stands still from the next heartbeat on until the alarm is over, and nothing is
consumed that could end it. Without, the end of the worker waits for the answer to the connection's close.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from kombu import Connection

#: Seconds to wait for the broker when the connection closes.
CLOSE_TIMEOUT = 1.0


def wait_for_nothing(consumer: Any) -> None:
    """Let the connection that ``consumer`` opens for events neither confirm nor wait long for its close."""

    def connection_for_write(url: str | None = None, heartbeat: float | None = None) -> Connection:
        options = {"confirm_publish": False}
        connection: Any = consumer.app.connection_for_write(url=url, heartbeat=heartbeat, transport_options=options)
        consumer.ensure_connected(connection)
        connection.close = partial(_close, connection, connection.close)
        return connection  # type: ignore[no-any-return]

    consumer.connection_for_write = connection_for_write


def _close(connection: Any, close: Callable[[], None]) -> None:
    sock = getattr(getattr(connection.connection, "transport", None), "sock", None) if connection.connected else None
    if sock is not None:
        sock.settimeout(CLOSE_TIMEOUT)
    close()
