"""The data of a delivery that the worker's main process passes to its pool."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from celery.exceptions import Retry

from ..ladders import Ladder

#: The attribute of a task's request that holds its `Delivery`.
KEY = "rmq_delay"


class RetryPath(str, Enum):
    """The path of a retry from its origin queue to a delay queue."""

    #: The main process rejects the message, and the broker moves it.
    REJECT = "reject"
    #: The main process publishes an unchanged copy of the message, and acks the message after the confirm.
    COPY = "copy"
    #: The task publishes a new message, and the main process acks the old one.
    PUBLISH = "publish"
    #: The main process requeues the message, and its queue holds it: RabbitMQ's native retry.
    REQUEUE = "requeue"


class Delivery(NamedTuple):
    """The origin of a message and its position in the ladder."""

    queue: str
    #: The tier it returned from; 0 when it comes from its publisher.
    tier_index: int
    #: Its jitter lane; None where its publisher set none.
    lane: int | None
    #: The cheapest path of a retry with the same arguments.
    path: RetryPath


def delivery_of(request: Any) -> Delivery | None:
    """Return the `Delivery` that this worker, not a header, has set on a request or its dictionary; else None."""
    found = request.get(KEY)
    return found if isinstance(found, Delivery) else None


class Retrying:
    """What `Task.retry` keeps on the request of one attempt, in the process or thread that runs the task."""

    __slots__ = ("is_used_up", "limit", "path")

    def __init__(self) -> None:
        #: The argument ``max_retries`` of `Task.retry`.
        self.limit: int | None = None
        #: Whether the attempt was the last one, so that Celery's ``retry`` raises.
        self.is_used_up = False
        #: The path of the retry that is being made; None while none is.
        self.path: RetryPath | None = None

    @classmethod
    def of(cls, request: Any) -> Retrying:
        """Return the one of a task's request."""
        known = vars(request)
        if "rmq_delay_retrying" not in known:
            known["rmq_delay_retrying"] = cls()
        found: Retrying = known["rmq_delay_retrying"]
        return found


class Parked(Retry):
    """A `Retry` with the path of the message to its delay queue, and the tier or the exact delay."""

    excs: str | None  # the stubs lack it
    path = RetryPath.REJECT
    tier_index = 0
    delay_ms: int | None = None
    queue: str | None = None

    @classmethod
    def of(
        cls, retry: Retry, path: RetryPath, tier_index: int, delay_ms: int | None = None, queue: str | None = None
    ) -> Parked:
        """Return ``retry`` as a `Parked`; ``queue`` is set where it returns to another queue."""
        found: Any = retry  # the stubs lack ``excs``
        found.args = ()  # Celery's contain the retry itself: a reference cycle
        return _parked(found.message, found.exc, found.excs, found.when, path, tier_index, delay_ms, queue)

    def __reduce__(self) -> Any:
        rest = (self.queue,) if self.queue is not None else ()
        return _parked, (self.message, self.exc, self.excs, self.when, self.path, self.tier_index, self.delay_ms, *rest)


# So that tracebacks show Celery's name of the exception; it is pickled by `_parked`.
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
    # Celery's constructor pickles the exception to check whether it can be pickled, which is known here.
    parked = Parked.__new__(Parked)
    parked.args = (None, exc, when)
    own = {"path": path, "tier_index": tier_index, "delay_ms": delay_ms, "queue": queue}
    vars(parked).update(message=message, exc=exc, excs=excs, when=when, is_eager=False, sig=None, **own)
    return parked


def advances_by_itself(delivery: Delivery, ladder: Ladder, retries: int) -> bool:
    """Return whether a reject moves the message to the tier of its next retry, by its routing key."""
    if retries < len(ladder):
        return delivery.tier_index == retries
    return ladder.repeat_last and delivery.tier_index == len(ladder)
