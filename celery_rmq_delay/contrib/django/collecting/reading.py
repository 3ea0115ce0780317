"""From the bytes of the broker to facts; what nobody can read is kept as it is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ....events.schema import ROLLUP, Event
from ....redaction import Redaction
from . import facts
from .deliveries import Delivery
from .facts import Fact

#: Characters of why a message cannot be read.
MAX_ERROR = 2_000


@dataclass(frozen=True)
class Rollup:
    """A count of first attempts that succeeded."""

    event: Event


@dataclass(frozen=True)
class Unreadable:
    """A message that means nothing to the collector, and why. ``headers`` are all its properties as AMQP has them."""

    digest: str
    queue: str
    error: str
    body: bytes
    headers: bytes


Reading = Fact | Rollup | Unreadable


@dataclass(frozen=True)
class Reader:
    """Reads what comes from the two queues."""

    events_queue: str
    redaction: Redaction

    def read(self, queue: str, delivery: Delivery) -> Reading | None:
        """Return what a message of ``queue`` says; None where another message says it."""
        try:
            if queue == self.events_queue:
                return self._event(delivery)
            return facts.of_exhausted(delivery.message(), self.redaction)
        except Exception as error:  # noqa: BLE001 - whatever a hostile message makes fail, the others go on
            return unreadable(queue, delivery, error, self.redaction)

    def _event(self, delivery: Delivery) -> Reading | None:
        event = Event.from_json(delivery.body)
        if event.kind == ROLLUP:
            return Rollup(event)
        # A message that has no id, and that nobody could decode: it comes through the exhausted queue itself.
        return Fact(event, event.task_id) if event.task_id else None


def unreadable(queue: str, delivery: Delivery, error: BaseException, redaction: Redaction) -> Unreadable:
    """Return what is kept of a message that cannot be read, or written, because of ``error``."""
    digest = hashlib.sha256(b"\0".join((queue.encode(), delivery.properties, delivery.body))).hexdigest()
    text = redaction.text(f"{type(error).__name__}: {error}", MAX_ERROR)
    return Unreadable(digest, queue, text, delivery.body, delivery.properties)
