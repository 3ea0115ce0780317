"""Reads messages from their bytes; an unreadable one is kept as it is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ....events.schema import ROLLUP, Event
from ....redaction import Redaction
from . import facts
from .deliveries import Delivery
from .facts import Fact

#: The most characters of the error of an unreadable message.
MAX_ERROR = 2_000


@dataclass(frozen=True)
class Rollup:
    """A count of first attempts that succeeded."""

    event: Event


@dataclass(frozen=True)
class Unreadable:
    """A message that the collector cannot read, and the error. ``headers`` are all its AMQP properties, encoded."""

    digest: str
    queue: str
    error: str
    body: bytes
    headers: bytes


Reading = Fact | Rollup | Unreadable


@dataclass(frozen=True)
class Reader:
    """Reads the messages of the two queues."""

    events_queue: str
    redaction: Redaction

    def read(self, queue: str, delivery: Delivery) -> Reading | None:
        """Return the content of a message of ``queue``; None where another message has it."""
        try:
            if queue == self.events_queue:
                return self._event(delivery)
            return facts.of_exhausted(delivery.message(), self.redaction)
        except Exception as error:  # noqa: BLE001 - a hostile message must not stop the others
            return unreadable(queue, delivery, error, self.redaction)

    def _event(self, delivery: Delivery) -> Reading | None:
        event = Event.from_json(delivery.body)
        if event.kind == ROLLUP:
            return Rollup(event)
        # The event of an undecodable message without an id: the message itself is in the exhausted queue.
        return Fact(event, event.task_id) if event.task_id else None


def unreadable(queue: str, delivery: Delivery, error: BaseException, redaction: Redaction) -> Unreadable:
    """Return a message that cannot be read or written because of ``error``, as it is kept."""
    digest = hashlib.sha256(b"\0".join((queue.encode(), delivery.properties, delivery.body))).hexdigest()
    text = redaction.text(f"{type(error).__name__}: {error}", MAX_ERROR)
    return Unreadable(digest, queue, text, delivery.body, delivery.properties)
