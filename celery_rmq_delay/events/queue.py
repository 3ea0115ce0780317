"""The events queue: its declaration, and the connection on which workers publish to it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from amqp.exceptions import PreconditionFailed

from ..amqp.apply import declare_nowait, ready_counts, synchronise
from ..amqp.connections import another
from ..amqp.link import Link
from ..amqp.objects import Queue, arguments
from ..commands import command
from ..exceptions import TopologyError
from ..topology.common import managed_queue_arguments

if TYPE_CHECKING:
    from kombu import Connection

    from ..app.state import AppState

logger = logging.getLogger(__name__)


def events_queue(delay: AppState) -> Queue:
    """Return the events queue; at its maximum length it drops the oldest events."""
    kept = dict(managed_queue_arguments(delay.shared_queue_type))
    bound = {"x-max-length": delay.settings.events.max_length, "x-overflow": "drop-head"}
    return Queue(delay.settings.names.events, arguments({**kept, **bound}))


def connect_events(source: Connection, delay: AppState) -> Link:
    """Return a link for events to the broker of ``source``, and make sure that the events queue exists. Blocks.

    The default channel is in confirm mode. A queue with other arguments is used unchanged. With
    ``apply_on_start=False`` the queue is not declared: `TopologyError` where it is missing. Raises connection errors.
    """

    def connect(connection: Connection) -> None:
        connection.connect()
        if delay.settings.apply_on_start:
            declare_events(connection, delay)
        elif ready_counts(connection, [delay.settings.names.events])[delay.settings.names.events] is None:
            raise TopologyError(
                f"The queue {delay.settings.names.events!r} is missing: run `{command('apply', delay.app)}`."
            )
        connection.default_channel.confirm_select()

    return Link(another(source, heartbeat=0), connect)


def declare_events(connection: Connection, delay: AppState) -> None:
    """Declare the events queue; log a warning where it exists with other arguments."""
    queue = events_queue(delay)
    try:
        with connection.channel() as channel:
            declare_nowait(channel, queue)
            synchronise(channel)
    except PreconditionFailed as error:
        logger.warning(
            "The events queue exists with other arguments (%s) and is used unchanged. To change it, delete it when it "
            "is empty, then run `%s`.",
            error.reply_text,
            command("apply", delay.app),
        )
