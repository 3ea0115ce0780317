"""The queue of events: its declaration, its state, and the connection on which workers write to it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from amqp.exceptions import PreconditionFailed

from ..amqp.apply import declare_nowait, ready_counts, synchronise
from ..amqp.connections import another, keeps_waiting
from ..amqp.objects import Queue, arguments
from ..exceptions import TopologyError
from ..topology.common import own_queue_arguments

if TYPE_CHECKING:
    from kombu import Connection

    from ..app.state import AppState

logger = logging.getLogger(__name__)


def events_queue(delay: AppState) -> Queue:
    """Return the queue of events: it drops its oldest ones where it would grow too long."""
    kept = dict(own_queue_arguments(delay.own_queue_type))
    bound = {"x-max-length": delay.settings.events.max_length, "x-overflow": "drop-head"}
    return Queue(delay.settings.names.events, arguments({**kept, **bound}))


def connect_events(source: Connection, delay: AppState) -> Connection:
    """Return a connection to the broker of ``source``, for events only, whose queue exists. Blocks.

    Its default channel confirms. A queue that exists with other arguments is used as it is. With
    ``apply_on_start=False`` it is only looked for. Raises what connecting raises, and `TopologyError`.
    """
    connection = another(source, heartbeat=0, transport_options=keeps_waiting(source.transport_options or {}))
    try:
        connection.connect()
        if delay.settings.apply_on_start:
            declare_events(connection, delay)
        elif ready_counts(connection, [delay.settings.names.events])[delay.settings.names.events] is None:
            raise TopologyError(
                f"The queue {delay.settings.names.events!r} is missing: run `celery -A proj rmq-delay apply`."
            )
        connection.default_channel.confirm_select()
    except BaseException:
        connection.collect()
        raise
    return connection


def declare_events(connection: Connection, delay: AppState) -> None:
    """Declare the queue of events; one with other arguments only earns a warning."""
    queue = events_queue(delay)
    try:
        with connection.channel() as channel:
            declare_nowait(channel, queue)
            synchronise(channel)
    except PreconditionFailed as error:
        logger.warning(
            "The queue of events exists with other arguments (%s): it is used as it is. To change it, delete it when "
            "it is empty, then run `celery -A proj rmq-delay apply`.",
            error.reply_text,
        )
