"""Look through a queue without taking anything from it, and move the wanted messages out of it.

AMQP can only take from the head. So a scan holds what it has seen, unacknowledged, on a channel of its own; closing
that channel gives back, in its order, whatever was not acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from amqp.exceptions import ChannelError, NotFound

from .broker import publish_confirmed
from .exceptions import PublishError, TopologyError

if TYPE_CHECKING:
    import amqp
    from kombu import Connection
    from kombu.message import Message

#: How many messages of one queue a scan looks at unless told otherwise.
SCAN_LIMIT = 100_000


class Scan:
    """The messages of one queue, each once; see `scanning`."""

    def __init__(self, connection: Connection, channel: Any, queue: str, most: int) -> None:
        self._connection, self._channel, self._queue, self._most = connection, channel, queue, most
        self._publisher: amqp.Channel | None = None
        #: How many messages were looked at.
        self.seen = 0
        #: Whether there was nothing left to look at.
        self.complete = False

    def __iter__(self) -> Iterator[Message]:
        while self.seen < self._most:
            try:
                raw = self._channel.basic_get(self._queue)
            except NotFound as error:
                raise TopologyError(
                    f"The queue {self._queue!r} does not exist: run `celery -A proj rmq-delay apply`."
                ) from error
            if raw is None:
                self.complete = True
                return
            self.seen += 1
            yield self._channel.message_to_python(raw)

    def move(self, message: Message, copy: amqp.Message, exchange: str, routing_key: str) -> None:
        """Publish ``copy`` with confirm, then ack ``message``.

        Raises `PublishError` when the broker has not taken the copy; the message then stays.
        """
        if self._publisher is None or not self._publisher.is_open:
            self._publisher = self._connection.channel()
        try:
            publish_confirmed(self._publisher, copy, exchange, routing_key)
        except ChannelError as error:
            raise PublishError(f"The broker refused a message for {exchange or routing_key!r}: {error}.") from error
        except PublishError:
            self.close_publisher()  # a confirm that comes late is not to be taken for another message's
            raise
        self.remove(message)

    def remove(self, message: Message) -> None:
        """Ack ``message``: it is gone from the queue."""
        self._channel.basic_ack(message.delivery_tag)

    def close_publisher(self) -> None:
        """Close the channel of `move`."""
        if self._publisher is not None and self._publisher.is_open:
            self._publisher.close()
        self._publisher = None


@contextmanager
def scanning(connection: Connection, queue: str, most: int = SCAN_LIMIT) -> Iterator[Scan]:
    """Scan at most ``most`` messages of ``queue``; at the end of the block what was not removed is given back in order.

    Bodies stay the bytes that they are. Raises `TopologyError` where the queue does not exist.
    """
    channel = connection.channel()
    channel.auto_decode = False
    scan = Scan(connection, channel, queue, most)
    try:
        yield scan
    finally:
        scan.close_publisher()
        if channel.is_open:
            channel.close()
