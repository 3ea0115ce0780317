"""Count the messages that are published to Celery's levels during a migration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...amqp.apply import exchange_exists
from ..celery_native_delay import ENTRY

if TYPE_CHECKING:
    from amqp import Channel
    from kombu import Connection


class Arrivals:
    """A temporary queue behind the exchange by which every message enters the levels."""

    def __init__(self, channel: Channel | None) -> None:
        self._channel = channel
        self._queue = ""
        if channel is not None:
            self._queue = channel.queue_declare(exclusive=True, auto_delete=True).queue
            channel.queue_bind(self._queue, ENTRY, "#")

    @property
    def count(self) -> int:
        """How many messages have entered the levels since the start."""
        if self._channel is None:
            return 0
        found: int = self._channel.queue_declare(self._queue, passive=True).message_count
        return found


@contextmanager
def arrivals(connection: Connection) -> Iterator[Arrivals]:
    """Count the messages that enter Celery's levels in the block.

    Only the entry can be observed like this: a second queue behind the exit would take messages that match no other
    queue, and they would be lost with it.
    """
    if not exchange_exists(connection, ENTRY):
        yield Arrivals(None)
        return
    with connection.channel() as channel:
        found = Arrivals(channel)
        try:
            yield found
        finally:
            if channel.is_open:
                channel.queue_delete(found._queue)
