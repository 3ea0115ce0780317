"""Non-blocking connections for a worker's Celery events and remote-control replies.

Celery sends both from the event loop. In a memory or disk alarm RabbitMQ stops reading from a connection that has
published. With ``confirm_publish`` the loop blocks from the next heartbeat until the alarm is over, and no message is
consumed that could end it. Without it, the loop blocks when the kernel accepts no more bytes, or at the next method
that needs a reply, such as the connection's close.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import kombu

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection

#: Seconds to wait for the broker's reply, such as to the close of a connection.
PATIENCE = 1.0


def wait_for_nothing(consumer: Any) -> None:
    """Keep the events and the remote control of ``consumer``'s worker from waiting for a broker with an alarm."""

    def connection_for_write(url: str | None = None, heartbeat: float | None = None) -> Connection:
        return _Line(consumer.app, consumer.ensure_connected, url=url, heartbeat=heartbeat).connection

    consumer.connection_for_write = connection_for_write
    consumer.app.control.mailbox.producer_pool = _Producers(consumer)


class _Line:
    """A connection without confirms that drops messages while the broker blocks it, and closes in time."""

    def __init__(self, app: Celery, connect: Callable[[Connection], object], **options: Any) -> None:
        self.blocked = False
        transport = {"confirm_publish": False, "on_blocked": self._on_blocked, "on_unblocked": self._on_unblocked}
        self.connection: Connection = app.connection_for_write(transport_options=transport, **options)
        connect(self.connection)
        line: Any = self.connection  # the stubs do not allow replacing a method
        channel: Any = line.default_channel
        self._publish, self._close = channel.basic_publish, line.close
        channel.basic_publish, line.close = self.publish, self.close

    def publish(self, *arguments: Any, **options: Any) -> None:
        """Publish, unless the broker blocks the connection."""
        if self.blocked:
            self.check()
        if not self.blocked:
            self._publish(*arguments, **options)

    def check(self) -> None:
        """Update whether the broker blocks the connection."""
        with suppress(TimeoutError):
            self.connection.drain_events(timeout=0)

    def close(self) -> None:
        """Close the connection, cleanly if the broker replies in time."""
        self.hurry()
        self._close()

    def hurry(self) -> None:
        """Limit each wait for a reply to `PATIENCE`."""
        transport = getattr(self.connection.connection, "transport", None) if self.connection.connected else None
        if (sock := getattr(transport, "sock", None)) is not None:  # none in memory
            with suppress(OSError):  # the connection may be lost
                sock.settimeout(PATIENCE)

    def _on_blocked(self, _reason: str) -> None:
        self.blocked = True

    def _on_unblocked(self) -> None:
        self.blocked = False


class _Producers:
    """Replaces remote control's pool of producers: one connection, and a new one if that is blocked."""

    def __init__(self, consumer: Any) -> None:
        self._consumer, self._lock = consumer, threading.Lock()
        self._line: _Line | None = None

    @contextmanager
    def acquire(self, *_: Any, **__: Any) -> Iterator[kombu.Producer]:
        """Yield the producer."""
        with self._lock:
            yield kombu.Producer(self._usable().connection, auto_declare=False)

    def _usable(self) -> _Line:
        line = self._line
        if line is not None and line.connection.connected:
            try:
                line.check()
            except self._consumer.connection_errors:
                line.blocked = True
        if line is None or line.blocked or not line.connection.connected:
            if line is not None:
                line.connection.collect()
            line = self._line = _Line(self._consumer.app, kombu.Connection.connect)
            line.hurry()
        return line
