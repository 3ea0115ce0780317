"""The state of the event queue, what an apply would declare for it, and its findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..amqp.apply import Drift, ready_counts
from .findings import Finding
from .pending import Pending
from .results import Result

if TYPE_CHECKING:
    from kombu import Connection

    from ..app.state import AppState


#: An event queue needs a collector when this share of its maximum length is reached.
_NEARLY_FULL = 0.9


@dataclass(frozen=True)
class EventStatus(Result):
    """The event queue. ``waiting`` counts its unread events; None if the queue does not exist."""

    queue: str
    waiting: int | None


def event_status(connection: Connection, delay: AppState) -> EventStatus | None:
    """Return how many events wait; None if events are off."""
    if not delay.settings.events.on:
        return None
    name = delay.settings.names.events
    return EventStatus(name, ready_counts(connection, [name])[name])


def event_pending(connection: Connection, delay: AppState) -> Pending:
    """Return what an apply would declare for events; a queue with other arguments is used as it is."""
    found = event_status(connection, delay)
    missing = (Drift("queue", found.queue, "missing"),) if found is not None and found.waiting is None else ()
    return Pending(queue="events", create=missing)


def event_findings(connection: Connection, delay: AppState) -> Iterator[Finding]:
    """Report an event queue that is nearly full."""
    found = event_status(connection, delay)
    most = delay.settings.events.max_length
    if found is not None and found.waiting is not None and found.waiting >= _NEARLY_FULL * most:
        what = f"{found.waiting} of at most {most} events wait: the oldest are dropped."
        hint = "Start a collector (`manage.py rmq_delay_collect`), or set events to False."
        yield Finding("events-unread", "warning", found.queue, what, hint)
