"""What the worker's main process knows of a delivery and its pool has to know."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from celery.exceptions import Retry

from ..ladders import Ladder

#: The attribute of a task's request that holds its `Delivery`.
KEY = "rmq_delay"


class RetryPath(str, Enum):
    """How a retry gets from its origin queue into a delay queue."""

    #: The main process rejects the message, and the broker moves it.
    REJECT = "reject"
    #: The main process publishes a copy of the message as it is, and acks the message when the broker has the copy.
    COPY = "copy"
    #: The task publishes a new message, and the main process acks the old one.
    PUBLISH = "publish"
    #: The main process gives the message back, and its queue holds it: RabbitMQ's own delayed retry.
    REQUEUE = "requeue"


class Delivery(NamedTuple):
    """Where a message comes from and how far up its ladder it is."""

    queue: str
    #: The tier it came back from; 0 when it comes from its publisher.
    tier_index: int
    #: Its lane of jitter; None where its publisher gave it none.
    lane: int | None
    #: The cheapest way that a retry with the same arguments can take.
    path: RetryPath


def delivery_of(request: Any) -> Delivery | None:
    """Return what this worker has noted in a task's request, or its dictionary; None where it has noted nothing.

    What a message itself has under that name is none of ours.
    """
    found = request.get(KEY)
    return found if isinstance(found, Delivery) else None


class Parked(Retry):
    """The `Retry` that says how the message gets to its delay queue, and to which tier, or with which exact delay."""

    excs: str | None  # the stubs lack it
    path = RetryPath.REJECT
    tier_index = 0
    delay_ms: int | None = None
    queue: str | None = None

    @classmethod
    def of(
        cls, retry: Retry, path: RetryPath, tier_index: int, delay_ms: int | None = None, queue: str | None = None
    ) -> Parked:
        """Return ``retry`` as a `Parked`; ``queue`` where it is to come back to another one."""
        found: Any = retry  # the stubs lack ``excs``
        found.args = ()  # Celery's hold the retry itself: a cycle
        return _parked(found.message, found.exc, found.excs, found.when, path, tier_index, delay_ms, queue)

    def __reduce__(self) -> Any:
        rest = (self.queue,) if self.queue is not None else ()
        return _parked, (self.message, self.exc, self.excs, self.when, self.path, self.tier_index, self.delay_ms, *rest)


# In the text of a traceback users look for the name they know; it is pickled through `_parked`.
Parked.__module__, Parked.__name__, Parked.__qualname__ = Retry.__module__, Retry.__name__, Retry.__qualname__


def _parked(
    message: str | None,
    exc: BaseException | None,
    excs: str | None,
    when: Any,
    path: RetryPath,
    tier_index: int,
    delay_ms: int | None,
    queue: str | None = None,
) -> Parked:
    # Celery's constructor pickles the exception to see whether it can be pickled; here that is known.
    parked = Parked.__new__(Parked)
    parked.args = (None, exc, when)
    own = {"path": path, "tier_index": tier_index, "delay_ms": delay_ms, "queue": queue}
    vars(parked).update(message=message, exc=exc, excs=excs, when=when, is_eager=False, sig=None, **own)
    return parked


def advances_by_itself(delivery: Delivery, ladder: Ladder, retries: int) -> bool:
    """Return whether a reject takes the message to the tier of its next retry: its routing key says so."""
    if retries < len(ladder):
        return delivery.tier_index == retries
    return ladder.repeat_last and delivery.tier_index == len(ladder)
