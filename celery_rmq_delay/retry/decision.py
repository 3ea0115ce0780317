"""Decisions about a message: on delivery, on a retry, and at the end of an attempt.

The worker's main process and the children of its pool call the same functions; `Settling` executes the decisions.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from .. import headers as h
from ..amqp.capabilities import Capabilities
from ..headers import Headers
from ..ladders import Ladder
from ..names import quarantine, tier_of
from ..topology.native_retry import NativeRetry
from .delivery import Delivery, Parked, RetryPath, advances_by_itself


def was_interrupted(headers: Headers, *, redelivered: bool, quorum: bool, broker: Capabilities) -> bool:
    """Return whether an earlier delivery of this message to its origin queue ended without an answer.

    Classic queues, and all queues before RabbitMQ 4.0, flag only those (messages that 4.1 and later flag as well are
    never rejected here, see `Capabilities.flags_returned`). Quorum queues of 4.0 and later flag every message that was
    rejected before; of these, the interrupted ones have a delivery count other than the number of rejections: on 4.0
    the interruption resets the count, on 4.3 it continues. So on 4.0 the first interruption after exactly one rejection
    is not detected; the second is. See `timed_out` for those that 4.3 does not count.

    A lost worker's prefetched messages are all requeued, so such a message is only *quarantined* at first: it goes once
    to the quarantine queue, whose messages a worker runs one by one. A message redelivered there was running.
    """
    if not redelivered:
        return False
    if quorum and broker.keeps_delivery_count:
        return timed_out(headers) or h.whole_number(headers.get("x-delivery-count")) != h.all_rejections(headers)
    return True


def timed_out(headers: Headers) -> bool:
    """Return whether a quorum queue of RabbitMQ 4.3 has taken a delivery back at its consumer time-out, or a ``nack``.

    It counts the return in ``x-acquired-count``, which restarts whenever the message enters the queue, and not in
    ``x-delivery-count``; after a retry both are equal. So the first time-out after exactly one rejection is not
    detected; the second is.
    """
    acquired, delivered = headers.get("x-acquired-count"), headers.get("x-delivery-count")
    return acquired is not None and h.whole_number(delivered) == h.all_rejections(headers) != h.whole_number(acquired)


def crashes(headers: Headers) -> int:
    """Return how many workers this message is known to have killed."""
    return h.whole_number(headers.get(h.CRASHES))


class Action(str, Enum):
    """What the worker does with a message."""

    #: Hand it to the pool.
    RUN = "run"
    #: Move it to a delay queue until its eta.
    HOLD = "hold"
    #: Move it to the quarantine queue, or to the end of that queue.
    QUARANTINE = "quarantined"
    #: Move it to the end of the queue that it came from.
    RETURN = "return"
    #: Move it to a delay queue, by the path of the decision.
    PARK = "park"
    #: Move it to the exhausted queue.
    EXHAUSTED = "exhausted"
    #: Ack it.
    ACK = "ack"
    #: Hand it to its attempt, which runs or has ended in this worker.
    ADOPT = "adopted"
    #: Leave it to Celery, which rejects it, or to the broker, which delivers it again.
    LEAVE = "leave"


class End(str, Enum):
    """How an attempt, or a delivery without one, has ended."""

    SUCCEEDED = "success"
    #: `celery.exceptions.Ignore`.
    IGNORED = "ignored"
    #: Revoked before it ran, or terminated while it ran.
    REVOKED = "revoked"
    #: Its ``expires`` was past before it ran.
    EXPIRED = "expired"
    #: `celery.exceptions.Retry`: by `Task.retry`, ``autoretry_for`` or the task itself.
    RETRIED = "retry"
    #: Any other exception.
    FAILED = "failure"
    #: Its process was lost, or ran into its hard time limit.
    LOST = "lost"
    #: ``Reject(requeue=True)``.
    REQUEUED = "requeued"
    #: ``Reject(requeue=False)``.
    REJECTED = "rejected"
    #: It has killed too many workers while it ran from the quarantine queue.
    CRASHED = "crashed"
    #: The worker shuts down and has not started it, or does not wait for it.
    NOT_STARTED = "not started"
    #: Celery has ended its process: at a cold shutdown, which requeues its message, or because the connection was lost.
    ABANDONED = "abandoned"


class Place(NamedTuple):
    """The properties of the queue that a message is delivered from."""

    queue: str
    #: Whether it is the quarantine queue of ``queue``.
    is_quarantined: bool = False
    #: Whether the ladder is applied, so that the delay queues and the quarantine queue exist.
    is_applied: bool = True
    #: Whether the queue counts deliveries, according to the origin queue's type and its adoption.
    counts: bool = False
    broker: Capabilities = Capabilities((0, 0, 0))
    #: Whether the task's ladder is among those applied to the queue.
    is_planned: bool = True
    #: The task, where it has its own tiers: the broker selects its ladder by the header ``task``.
    own_tiers_of: str | None = None
    #: Whether the queue dead-letters a rejected message into its ladder.
    rejects: bool = True
    #: How often a message may be rejected before it has to be published again.
    rejections_allowed: int = 2**31
    #: Whether the queue flags each message that returns from a delay queue as redelivered.
    flags_returned: bool = False
    #: Whether its delay queues deliver by priority.
    sorts: bool = False
    #: Whether the queue has a single active consumer: quarantined messages would run elsewhere at the same time.
    has_single_consumer: bool = False
    native_retry: NativeRetry | None = None
    max_crashes: int = 3

    @property
    def max_requeues(self) -> int:
        """Return how often a message may be requeued, where a lost worker counts as a requeue, too."""
        return min(max(1, self.max_crashes), self.rejections_allowed)


class Arrival(NamedTuple):
    """The properties of a delivery, and what to do with it."""

    action: Action
    delivery: Delivery
    #: How many retries came before this attempt.
    retries: int
    #: How many workers the message has killed, including one detected on this delivery.
    crashes: int
    #: The value of ``delivery_info["redelivered"]`` for the task.
    redelivered: bool
    #: Whether the message's eta still applies.
    keeps_eta: bool


def arrive(
    headers: Headers,
    place: Place,
    ladder: Ladder,
    *,
    known: object,
    routing_key: str,
    redelivered: bool,
    eta_ahead: bool = False,
    is_stopping: bool = False,
    has_room: bool = True,
    priority: int = 0,
) -> Arrival:
    """Return what a delivery is and what to do with it. ``has_room``: whether the pool starts it at once.

    ``known`` is the number of retries in the message's header, of any type; ``priority`` that of the message, which
    only a copy can drop. The broker's ``x-death`` history counts only where the routing key shows that the message
    returned from a delay queue: a publisher can send any headers.
    """
    queue, native_retry = place.queue, place.native_retry
    tier_index = 0 if place.is_quarantined else tier_of(queue, routing_key)
    found = h.rejections(headers, queue, quarantine(queue)) if "x-death" in headers else 0
    rejections = found if tier_index else 0
    requeues = native_retry.requeue_count(headers) if native_retry else 0
    advanced = rejections + requeues
    retries = h.whole_number(h.whole_number(known) + advanced)
    interrupted = redelivered and _was_interrupted(headers, place)
    is_copied = found != rejections or found >= place.rejections_allowed or (place.sorts and priority > 0)
    is_copied = is_copied or place.own_tiers_of not in (None, headers.get("task"))
    path = _cheapest(headers, place, ladder, retries, is_copied=is_copied)
    keeps_eta = eta_ahead and not advanced
    is_returned = is_stopping or (place.is_quarantined and not has_room)
    action, crashed = _on_arrival(headers, place, interrupted, keeps_eta, is_returned)
    return Arrival(
        action,
        Delivery(queue, tier_index, headers.get(h.LANE), path),
        retries,
        crashed,
        # A quarantined task was delivered before: Celery's `worker_deduplicate_successful_tasks` checks whether it has
        # succeeded.
        interrupted or place.is_quarantined or (h.REQUEUED in headers and not advanced),
        keeps_eta,
    )


def forgive(arrival: Arrival, headers: Headers) -> Arrival:
    """Return an arrival without a crash counted on it: Celery ended its attempt in a worker that lives."""
    action = Action.QUARANTINE if arrival.action is Action.EXHAUSTED else arrival.action
    return arrival._replace(action=action, crashes=crashes(headers))


def _was_interrupted(headers: Headers, place: Place) -> bool:
    """Return whether a flagged delivery follows one that ended without an ack or a reject."""
    if place.native_retry:
        return place.native_retry.was_interrupted(headers, place.max_requeues)
    return place.is_quarantined or was_interrupted(headers, redelivered=True, quorum=place.counts, broker=place.broker)


def _on_arrival(
    headers: Headers, place: Place, interrupted: bool, keeps_eta: bool, is_returned: bool
) -> tuple[Action, int]:
    crashed = crashes(headers)
    if not place.is_applied:  # it has no quarantine queue, and may have no ladder
        return Action.RUN, crashed
    if interrupted and (place.is_quarantined or not place.has_single_consumer):
        # The loss that quarantined it does not count, nor does a time-out: the worker lives.
        crashed += 1 if place.is_quarantined and not timed_out(headers) else 0
        is_given_up = place.is_quarantined and crashed >= max(1, place.max_crashes)
        return (Action.EXHAUSTED if is_given_up else Action.QUARANTINE), crashed
    if keeps_eta:
        return Action.HOLD, crashed
    return (Action.RETURN if is_returned else Action.RUN), crashed


def _cheapest(headers: Headers, place: Place, ladder: Ladder, retries: int, *, is_copied: bool) -> RetryPath:
    """Return the cheapest path of an unchanged retry to the delay queue of the next tier."""
    if place.native_retry and place.is_applied:
        delay_ms = ladder.tiers_ms[ladder.tier_after(retries) - 1]
        if place.native_retry.takes(headers, delay_ms, place.max_requeues):
            return RetryPath.REQUEUE
    if not (place.is_planned and place.is_applied):
        return RetryPath.PUBLISH
    is_copied = is_copied or place.is_quarantined or not place.rejects or place.flags_returned
    return RetryPath.COPY if is_copied else RetryPath.REJECT


class Attempt(NamedTuple):
    """The data of an attempt that has ended."""

    delivery: Delivery
    ladder: Ladder
    #: How many retries came before it, and how many the task may have; None for any number.
    retries: int
    budget: int | None

    @property
    def is_used_up(self) -> bool:
        """Whether it was the last attempt."""
        return self.budget is not None and self.retries >= self.budget


class Ending(NamedTuple):
    """What to do with the message of an attempt that has ended."""

    action: Action
    #: For `Action.PARK`: the path to its delay queue, and the tier's number from 1 or an exact delay.
    path: RetryPath = RetryPath.COPY
    tier_index: int = 0
    delay_ms: int | None = None
    #: For `Action.EXHAUSTED` and discarded tasks: the reason.
    reason: str | None = None


#: The endings that do not depend on the attempt.
_SETTLED = {
    End.SUCCEEDED: Ending(Action.ACK),
    End.REQUEUED: Ending(Action.RETURN),
    End.NOT_STARTED: Ending(Action.RETURN),
    End.ABANDONED: Ending(Action.LEAVE),
    End.IGNORED: Ending(Action.ACK, reason="ignored"),
    End.REVOKED: Ending(Action.ACK, reason="revoked"),
    End.EXPIRED: Ending(Action.ACK, reason="expired"),
    End.CRASHED: Ending(Action.EXHAUSTED, reason="crashed"),
}


def next_delay(
    delivery: Delivery, ladder: Ladder, retries: int, *, is_exact: bool = False, is_changed: bool = False
) -> tuple[RetryPath, int]:
    """Return the path of the next retry, and its tier; ``is_changed``: it is another message than this one."""
    path = RetryPath.PUBLISH if is_changed else delivery.path
    by_itself = path is not RetryPath.REJECT or advances_by_itself(delivery, ladder, retries)
    if path is not RetryPath.PUBLISH and (is_exact or not by_itself):
        path = RetryPath.COPY
    return path, ladder.tier_after(retries)


def end(how: End, attempt: Attempt | Parked, *, rejects: bool = True, is_adopted: bool = False) -> Ending:
    """Return what to do with a message. A `Parked` is the decision of `Task.retry`; ``rejects`` as in `Place`, now.

    ``is_adopted``: it was delivered again, maybe from another queue, since the attempt began.
    """
    if how is End.REJECTED and not rejects:  # to where its queue leads
        return Ending(Action.LEAVE)
    if how in _SETTLED:
        return _SETTLED[how]
    if isinstance(attempt, Parked):
        path, tier_index, delay_ms = attempt.path, attempt.tier_index, attempt.delay_ms
    elif how is End.FAILED or attempt.is_used_up:
        return Ending(Action.EXHAUSTED, reason="retries_used" if attempt.is_used_up else "gave_up")
    else:
        (path, tier_index), delay_ms = next_delay(attempt.delivery, attempt.ladder, attempt.retries), None
        path = RetryPath.COPY if path is RetryPath.PUBLISH else path  # the task can publish nothing anymore
    # Its queue was detached while the task ran, or it came from the quarantine queue.
    if (path is RetryPath.REJECT and not rejects) or (is_adopted and path is not RetryPath.PUBLISH):
        path = RetryPath.COPY
    return Ending(Action.PARK, path, tier_index, delay_ms)
