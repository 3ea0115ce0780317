"""What the worker's main process knows of a delivery and its pool has to know."""

from __future__ import annotations

from typing import Any, NamedTuple

from celery.exceptions import Retry

#: The attribute of a task's request that holds its `Delivery`.
KEY = "rmq_delay"


class Delivery(NamedTuple):
    """Where a message comes from and how far up its ladder it is."""

    queue: str
    #: The rung it came back from; 0 when it comes from its publisher.
    rung: int
    #: Its lane of jitter; None where its publisher gave it none.
    lane: int | None
    #: Whether a reject parks it in the next rung: not for queues without our dead-letter exchange, suspects, and the like.
    rejectable: bool


class Parked(Retry):  # type: ignore[misc]
    """The `Retry` that says how the message gets to its delay queue.

    ``forwarded``: a copy is there already, confirmed, and the original is to be acked; otherwise the original is to be
    rejected.
    """

    forwarded = False

    @classmethod
    def of(cls, retry: Retry, *, forwarded: bool) -> Parked:
        """Return ``retry`` as a `Parked`."""
        parked = cls.__new__(cls)
        vars(parked).update(vars(retry))
        parked.args = (None, retry.exc, retry.when)
        parked.sig = None
        parked.forwarded = forwarded
        return parked

    def __reduce__(self) -> Any:
        return _parked, (self.message, self.exc, self.excs, self.when, self.forwarded)


def _parked(message: str | None, exc: BaseException | None, excs: str | None, when: Any, forwarded: bool) -> Parked:
    parked = Parked.__new__(Parked)
    parked.args = (None, exc, when)
    vars(parked).update(
        message=message, exc=exc, excs=excs, when=when, is_eager=False, sig=None, forwarded=forwarded
    )
    return parked
