"""A message between its delivery and its ack: where it came from, what was decided, and what is owed."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from .. import headers as h
from ..amqp.backoff import Backoff
from ..retry.decision import Arrival
from ..retry.delivery import Delivery

if TYPE_CHECKING:
    from kombu.message import Message

#: Task id, task, retries, generation, how often its task has requeued the message, and a hash of its body.
Key = tuple[Any, str, int, int, int, int]
#: The attribute of kombu's message that holds its `InFlight` while Celery's consumer handles it.
ATTRIBUTE = "rmq_delay_flight"


class Owed(Enum):
    """What this worker owes for a message that is neither acked nor rejected."""

    #: A decision: it was only received.
    DECISION = "decision"
    #: A start: it was handed to Celery.
    START = "start"
    #: An outcome: its task runs here, or has ended.
    OUTCOME = "outcome"
    #: An ack, once the broker has confirmed its copy; until then the copy is published again.
    COPY = "copy"


class InFlight:
    """One delivery of a message. The attributes after ``is_managed`` are set where that is true."""

    __slots__ = (
        *("attempt", "came", "delivery", "headers", "is_managed", "is_quarantined", "key", "message", "owed"),
        *("pauses", "queue", "retries", "settling"),
    )

    #: Whether its queue has a ladder, so that this package settles it, and not Celery.
    is_managed: bool
    delivery: Delivery
    #: What identifies its attempt among all deliveries.
    key: Key
    #: The `Settling` of its consumer.
    settling: Any

    def __init__(self, message: Message, queue: str = "", *, is_quarantined: bool = False) -> None:
        self.message = message
        #: The origin queue, and whether it was delivered from its quarantine queue.
        self.queue, self.is_quarantined = queue, is_quarantined
        #: Its headers as received, and the `delivery_info` of this delivery.
        self.headers: dict[str, Any] = message.headers
        self.came: dict[str, Any] = message.delivery_info
        self.owed = Owed.DECISION
        self.is_managed = False
        #: How many retries came before its attempt.
        self.retries = 0
        #: The request of this worker that goes on with it, where it was delivered before.
        self.attempt: Any = None
        #: The growing pauses between the attempts to publish its copy.
        self.pauses: Backoff | None = None

    @property
    def is_lost(self) -> bool:
        """Whether its connection is lost, so that the broker delivers it again."""
        channel: Any = self.message.channel
        return not (channel.is_open and channel.connection.connected)

    def manage(self, settling: Any, found: Arrival, task_id: Any, task: str) -> None:
        """Record that this package settles it, and what it is."""
        self.is_managed, self.settling = True, settling
        self.delivery, self.retries = found.delivery, found.retries
        raw, requeued = self.headers, h.whole_number(self.headers.get(h.REQUEUED))
        self.key = task_id, task, found.retries, h.generation(raw), requeued, hash(self.message.body)


def flight_of(message: Message) -> InFlight:
    """Return the `InFlight` that a message brings along; a new one where it did not come through the intake."""
    found = getattr(message, ATTRIBUTE, None)
    return found if isinstance(found, InFlight) else InFlight(message)
