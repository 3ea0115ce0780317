"""Delete an origin queue, and no message with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPNotImplementedError

from .. import headers as h
from ..amqp import apply
from ..amqp.connections import beside
from ..amqp.objects import Objects, Queue, arguments
from ..amqp.record import locked_record
from ..amqp.scan import SCAN_LIMIT, scanning
from ..exceptions import RmqDelayError
from ..topology.transition import recorded
from .release import counted_copy

if TYPE_CHECKING:
    from kombu import Connection

    from ..amqp.route import Route
    from ..management.records import QueueDetail
    from ..topology.ladder import LadderPlan

    Look = Callable[[], QueueDetail | None]

#: Seconds after which RabbitMQ's statistics of a queue are new: it makes them every five seconds.
STATISTICS = 6.0
#: Seconds in which a queue that tells nothing in it is tried to be deleted.
_PATIENCE = 5.0


@dataclass(frozen=True)
class Deletion:
    """What became of an origin queue: it is deleted, or kept with what it has.

    ``exhausted`` counts messages that were moved from it to the exhausted queue, ``hidden`` those that only the
    management API tells of: those that a worker still holds, delayed retries, and dead letters that wait.
    """

    queue: str
    deleted: bool
    exhausted: int = 0
    messages: int = 0
    consumers: int = 0
    hidden: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return dict(vars(self))


def delete_origin(
    connection: Connection, plan: LadderPlan, exact: Route, look: Look | None, *, lock_timeout: float = 30.0
) -> Deletion:
    """Delete the plan's origin queue, which nobody consumes, and exhaust what it has.

    RabbitMQ deletes a quorum queue whatever is in it, so the ways back to it are closed first: what is due from then on
    is exhausted as ``undeliverable``, and so is what has come back before. A queue that is kept has them again; after a
    crash in between, a worker's start brings them back. Publishers have to be stopped: nothing else keeps what they
    send. ``exact`` is the way of exact delays to the queue; ``look`` asks the management API for the queue, None does
    without what only that tells. Raises `LockTimeoutError` after ``lock_timeout`` seconds in which others apply,
    `PublishError`, and `RmqDelayError` where the queue has no ladder, or none that is on record.
    """
    found = _looked_at(connection, plan.queue)
    if found.deleted or found.consumers:
        return found
    if apply.look(connection, plan.record_queue().name) is None:
        raise RmqDelayError(f"Queue {plan.queue!r} has no ladder: run `celery -A proj rmq-delay apply` first.")
    with locked_record(connection, plan.record_queue(), lock_timeout, create=False) as (channel, record):
        objects = plan.objects(recorded(connection, plan, record).highest_tier) + exact.objects
        ways = tuple(each for each in objects.bindings if each.to == "queue" and each.destination == plan.queue)
        for way in ways:
            apply.unbind(channel, way)
        deleted = False
        try:
            exhausted = _exhaust(connection, plan)
            hidden = 0 if look is None else _hidden(look)
            deleted = not hidden and _delete(connection, plan.queue)
        finally:
            if not deleted:
                apply.declare(channel, Objects(bindings=ways))
    if deleted:
        return Deletion(plan.queue, deleted=True, exhausted=exhausted)
    return replace(_looked_at(connection, plan.queue), exhausted=exhausted, hidden=hidden)


def _hidden(look: Look) -> int:
    """Return how many messages a queue without ready ones has all the same, by statistics that are new enough."""
    found = 0
    for _ in range(2):
        time.sleep(STATISTICS)
        detail = look()
        found = max(detail.messages, (detail.held or 0) + detail.dead_letters_waiting) if detail else 0
        if not found:
            break
    return found


def _exhaust(connection: Connection, plan: LadderPlan) -> int:
    """Move all messages of the origin queue to the exhausted queue; return how many there were."""
    moved = _exhaust_some(connection, plan)
    return moved if moved < SCAN_LIMIT else moved + _exhaust(connection, plan)


def _exhaust_some(connection: Connection, plan: LadderPlan) -> int:
    moved = 0
    with scanning(connection, plan.queue, SCAN_LIMIT) as scan:
        for message in scan:
            more = {
                h.QUEUE: plan.queue,
                h.REASON: "undeliverable",
                h.ATTEMPTS: h.retries(message.headers, plan.queue),
                h.EXHAUSTED_AT: h.timestamp(datetime.now(timezone.utc)),
            }
            came_from = str((message.delivery_info or {}).get("exchange", ""))
            exchange = "" if came_from.startswith(f"{plan.names.prefix}.") else came_from
            scan.move(message, counted_copy(plan, message, more, exchange), "", plan.exhausted)
            moved += 1
        if moved:  # RabbitMQ 4.3 counts who fetches a quorum queue's messages as a consumer until it has all their acks
            scan.synchronise()
    return moved


def _looked_at(connection: Connection, queue: str) -> Deletion:
    found = apply.look(connection, queue)
    if found is None:
        return Deletion(queue, deleted=True)
    return Deletion(queue, deleted=False, messages=found.message_count, consumers=found.consumer_count)


def _delete(connection: Connection, queue: str) -> bool:
    """Delete a queue that is empty and unused.

    RabbitMQ 4.0.5 was seen to call a classic queue not empty that tells 0 messages, just after a dead letter left it.
    """
    deadline = time.monotonic() + _PATIENCE
    while not _try(connection, queue):
        found = _looked_at(connection, queue)
        if found.messages or found.consumers or time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _try(connection: Connection, queue: str) -> bool:
    """Delete it on condition, unless RabbitMQ cannot do so with its type."""
    try:
        with beside(connection) as own:  # the refusal closes it
            return apply.delete_unused(own, Queue(queue, arguments({"x-queue-type": "classic"})))
    except AMQPNotImplementedError:
        return apply.delete_unused(connection, Queue(queue, arguments({"x-queue-type": "quorum"})))
