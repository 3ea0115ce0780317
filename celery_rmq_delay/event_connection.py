"""The queue of events: its declaration, its state, and the connection on which workers write to it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amqp.exceptions import PreconditionFailed

from .broker import another
from .event_writer import keeps_waiting
from .exceptions import TopologyError
from .findings import Finding
from .topology.apply import Drift, declare_nowait, ready_counts, synchronise
from .topology.ladder import own_queue_arguments
from .topology.objects import Queue, arguments
from .topology.pending import Pending

if TYPE_CHECKING:
    from kombu import Connection

    from .delay import Delay

logger = logging.getLogger(__name__)

#: The share of its longest length from which on a queue of events needs a reader.
_NEARLY_FULL = 0.9


def events_queue(delay: Delay) -> Queue:
    """Return the queue of events: it drops its oldest ones where it would grow too long."""
    kept = dict(own_queue_arguments(delay.own_queue_type))
    bound = {"x-max-length": delay.settings.events.max_length, "x-overflow": "drop-head"}
    return Queue(delay.settings.names.events, arguments({**kept, **bound}))


@dataclass(frozen=True)
class EventStatus:
    """The queue of events. ``waiting`` counts those that nobody has read yet; None where the queue does not exist."""

    queue: str
    waiting: int | None

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return dict(vars(self))


def event_status(connection: Connection, delay: Delay) -> EventStatus | None:
    """Return how many events wait; None where events are off."""
    if not delay.settings.events.on:
        return None
    name = delay.settings.names.events
    return EventStatus(name, ready_counts(connection, [name])[name])


def event_pending(connection: Connection, delay: Delay) -> Pending:
    """Return what an apply would declare for events; a queue with other arguments is used as it is."""
    found = event_status(connection, delay)
    missing = (Drift("queue", found.queue, "missing"),) if found is not None and found.waiting is None else ()
    return Pending(queue="events", create=missing)


def event_findings(connection: Connection, delay: Delay) -> Iterator[Finding]:
    """Say where events are about to be dropped."""
    found = event_status(connection, delay)
    most = delay.settings.events.max_length
    if found is not None and found.waiting is not None and found.waiting >= _NEARLY_FULL * most:
        what = f"{found.waiting} of at most {most} events wait: the oldest are dropped."
        mend = "Start a collector (`manage.py rmq_delay_collect`), or set events to False."
        yield Finding("events-unread", "warning", found.queue, what, mend)


def connect_events(source: Connection, delay: Delay) -> Connection:
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


def declare_events(connection: Connection, delay: Delay) -> None:
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
