"""Count the messages that are published to Celery's levels during a migration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...amqp.apply import exchange_exists
from ..celery_native_delay import ENTRY

if TYPE_CHECKING:
    from kombu import Connection


@contextmanager
def arrivals(connection: Connection) -> Iterator[Callable[[], int]]:
    """Yield a function that returns how many messages have entered Celery's levels in the block.

    A temporary queue behind the entry counts them. Behind the exit it would take messages that match no other queue,
    and they would be lost with it.
    """
    if not exchange_exists(connection, ENTRY):
        yield lambda: 0
        return
    with connection.channel() as channel:
        queue = channel.queue_declare(exclusive=True, auto_delete=True).queue
        channel.queue_bind(queue, ENTRY, "#")
        try:
            yield lambda: int(channel.queue_declare(queue, passive=True).message_count)
        finally:
            if channel.is_open:
                channel.queue_delete(queue)
