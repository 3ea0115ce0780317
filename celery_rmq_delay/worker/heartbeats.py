"""Links for a worker's Celery events and remote-control replies.

Celery sends both from the event loop. In a memory or disk alarm RabbitMQ stops reading from a connection that has
published. With ``confirm_publish`` the loop blocks from the next heartbeat until the alarm is over, and no message is
consumed that could end it. Without it, the loop blocks when the kernel accepts no more bytes, or at the next method
that needs a reply, such as the connection's close.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import kombu

from ..amqp.link import Link

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection

#: Seconds to wait for the broker's reply, such as to the close of a connection.
PATIENCE = 1.0


def wait_for_nothing(consumer: Any) -> None:
    """Keep the events and the remote control of ``consumer``'s worker from waiting for a broker with an alarm."""

    def connection_for_write(url: str | None = None, heartbeat: float | None = None) -> Connection:
        return _Dropping(consumer.app, consumer.ensure_connected, url=url, heartbeat=heartbeat).connection

    consumer.connection_for_write = connection_for_write
    consumer.app.control.mailbox.producer_pool = _Producers(consumer)


class _Dropping(Link):
    """A link for Celery, whose publishes do not wait: messages are dropped while the broker does not take them."""

    def __init__(self, app: Celery, connect: Callable[[Connection], object], **options: Any) -> None:
        super().__init__(app.connection_for_write(**options), connect, patience=PATIENCE)
        line: Any = self.connection  # the stubs do not allow replacing a method
        channel: Any = line.default_channel
        self._publish = channel.basic_publish
        channel.basic_publish, line.close = self.publish, self.end

    def publish(self, *arguments: Any, **options: Any) -> None:
        """Publish, unless the broker does not take it now."""
        if not self.takes_more:
            self.turn()
        if self.takes_more:
            self._publish(*arguments, **options)


class _Producers:
    """Replaces remote control's pool of producers: one connection, and a new one if that is blocked."""

    def __init__(self, consumer: Any) -> None:
        self._consumer, self._lock = consumer, threading.Lock()
        self._link: _Dropping | None = None

    @contextmanager
    def acquire(self, *_: Any, **__: Any) -> Iterator[kombu.Producer]:
        """Yield the producer."""
        with self._lock:
            yield kombu.Producer(self._usable().connection, auto_declare=False)

    def _usable(self) -> _Dropping:
        link = self._link
        if link is not None and link.connection.connected:
            try:
                link.turn()
            except self._consumer.connection_errors:
                link.drop()
        if link is None or not link.takes_more or not link.connection.connected:
            if link is not None:
                link.drop()
            link = self._link = _Dropping(self._consumer.app, kombu.Connection.connect)
        return link
