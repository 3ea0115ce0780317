"""Delete an origin queue without losing a message."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from amqp.exceptions import AMQPNotImplementedError

from .. import headers as h
from ..amqp import apply
from ..amqp.connections import beside
from ..amqp.objects import Objects, Queue, arguments
from ..amqp.record import locked_record
from ..amqp.scan import SCAN_LIMIT, scanning
from ..commands import command
from ..exceptions import RmqDelayError
from ..topology.transition import recorded
from .release import counted_copy
from .results import Result

if TYPE_CHECKING:
    from kombu import Connection

    from ..management.records import QueueDetail
    from ..topology.ladder import LadderPlan

    Inspect = Callable[[], QueueDetail | None]

#: Seconds after which RabbitMQ's statistics of a queue are up to date: it emits them every five seconds.
STATISTICS = 6.0
#: Seconds in which to retry the deletion of a queue that reports no messages.
_PATIENCE = 5.0


@dataclass(frozen=True)
class Deletion(Result):
    """The result for an origin queue: deleted, or kept with its messages.

    ``exhausted`` counts messages that were moved from it to the exhausted queue, ``hidden`` those that only the
    management API reports: those that a worker still holds, delayed retries, and waiting dead letters.
    """

    queue: str
    deleted: bool
    exhausted: int = 0
    messages: int = 0
    consumers: int = 0
    hidden: int = 0


def delete_origin(
    connection: Connection, plan: LadderPlan, exact: Objects, inspect: Inspect | None, *, lock_timeout: float = 30.0
) -> Deletion:
    """Delete the plan's origin queue, which must have no consumers, and move its messages to the exhausted queue.

    RabbitMQ deletes even a quorum queue with messages, so the bindings that return messages to it are removed first:
    messages that are due from then on are exhausted as ``undeliverable``, and so are those that returned before. A kept
    queue gets its bindings back; after a crash in between, a worker's start restores them. Publishers must be stopped:
    what they send is lost. ``exact`` are the objects of exact delays that lead to the queue; ``inspect`` reads the
    queue from the management API, None skips the hidden messages. Raises `LockTimeoutError` after ``lock_timeout``
    seconds in which others apply, `PublishError`, and `RmqDelayError` if the queue has no ladder, or none on record.
    """
    found = _inspected(connection, plan.queue)
    if found.deleted or found.consumers:
        return found
    if apply.inspect_queue(connection, plan.record_queue().name) is None:
        raise RmqDelayError(f"Queue {plan.queue!r} has no ladder: run `{command('apply')}` first.")
    with locked_record(connection, plan.record_queue(), lock_timeout, create=False) as (_, record):
        objects = plan.objects(recorded(connection, plan, record).highest_tier) + exact
        ways = tuple(each for each in objects.bindings if each.to == "queue" and each.destination == plan.queue)
        for way in ways:
            record.unbind(way)
        deleted = False
        try:
            exhausted = _move_to_exhausted(connection, plan)
            hidden = 0 if inspect is None else _hidden(inspect)
            deleted = not hidden and delete_empty(connection, plan.queue)
        finally:
            if not deleted:
                record.declare(Objects(bindings=ways))
    if deleted:
        return Deletion(plan.queue, deleted=True, exhausted=exhausted)
    return replace(_inspected(connection, plan.queue), exhausted=exhausted, hidden=hidden)


def _hidden(inspect: Inspect) -> int:
    """Return how many messages a queue without ready ones still has, by up-to-date statistics."""
    found = 0
    for _ in range(2):
        time.sleep(STATISTICS)
        detail = inspect()
        found = max(detail.messages, (detail.held or 0) + detail.dead_letters_waiting) if detail else 0
        if not found:
            break
    return found


def _move_to_exhausted(connection: Connection, plan: LadderPlan) -> int:
    """Move all messages of the origin queue to the exhausted queue; return how many there were."""
    moved = _move_some(connection, plan)
    return moved if moved < SCAN_LIMIT else moved + _move_to_exhausted(connection, plan)


def _move_some(connection: Connection, plan: LadderPlan) -> int:
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
        if moved:  # RabbitMQ 4.3 counts a channel with unacked gets from a quorum queue as a consumer
            scan.synchronise()
    return moved


def _inspected(connection: Connection, queue: str) -> Deletion:
    found = apply.inspect_queue(connection, queue)
    if found is None:
        return Deletion(queue, deleted=True)
    return Deletion(queue, deleted=False, messages=found.message_count, consumers=found.consumer_count)


def delete_empty(connection: Connection, queue: str) -> bool:
    """Delete a queue of any type that is empty and unused; return whether it is gone.

    RabbitMQ 4.0.5 sometimes refuses, just after a dead letter left it, a classic queue with 0 messages as not empty.
    """
    deadline = time.monotonic() + _PATIENCE
    while not _try(connection, queue):
        found = _inspected(connection, queue)
        if found.messages or found.consumers or time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _try(connection: Connection, queue: str) -> bool:
    """Delete the queue, with the conditions unused and empty where RabbitMQ supports them for its type."""
    try:
        with beside(connection) as own:  # the refusal closes it
            return apply.delete_unused(own, Queue(queue, arguments({"x-queue-type": "classic"})))
    except AMQPNotImplementedError:
        return apply.delete_unused(connection, Queue(queue, arguments({"x-queue-type": "quorum"})))
