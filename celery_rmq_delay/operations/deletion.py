"""Delete objects of the broker without losing a message: in steps that one runner takes and reports, and origin queues.

A plan is a list of steps. Each can be taken again, so the next run continues after a crash. In a dry run the runner
changes nothing, and reports the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Literal, NamedTuple

import amqp
from amqp.exceptions import AMQPNotImplementedError, NotFound, PreconditionFailed
from kombu import Connection
from kombu.message import Message

from .. import headers as h
from ..amqp import apply
from ..amqp.connections import beside
from ..amqp.copies import copy_of
from ..amqp.objects import Binding, Objects, Queue, arguments
from ..amqp.record import locked_record
from ..amqp.scan import SCAN_LIMIT, scanning
from ..commands import command
from ..exceptions import RmqDelayError
from ..management.records import QueueDetail
from ..topology.ladder import LadderPlan
from ..topology.transition import recorded
from .results import Result

Inspect = Callable[[], QueueDetail | None]
#: Seconds after which RabbitMQ's statistics of a queue are up to date: it emits them every five seconds.
STATISTICS = 6.0
#: Seconds to wait for another process that applies the ladder.
LOCK_TIMEOUT = 30.0
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


def delete_origin(connection: Connection, plan: LadderPlan, exact: Objects, inspect: Inspect | None) -> Deletion:
    """Delete the plan's origin queue, which must have no consumers, and move its messages to the exhausted queue.

    RabbitMQ deletes even a quorum queue with messages, so the bindings that return messages to it are removed first:
    messages that are due from then on are exhausted as ``undeliverable``, and so are those that returned before. A kept
    queue gets its bindings back; after a crash in between, a worker's start restores them. Publishers must be stopped:
    what they send is lost. ``exact`` are the objects of exact delays that lead to the queue; ``inspect`` reads the
    queue from the management API, None skips the hidden messages. Raises `LockTimeoutError` after `LOCK_TIMEOUT`
    seconds in which others apply, `PublishError`, and `RmqDelayError` if the queue has no ladder, or none on record.
    """
    found = _inspected(connection, plan.queue)
    if found.deleted or found.consumers:
        return found
    if apply.inspect_queue(connection, plan.record_queue().name) is None:
        raise RmqDelayError(f"Queue {plan.queue!r} has no ladder: run `{command('apply')}` first.")
    with locked_record(connection, plan.record_queue(), LOCK_TIMEOUT, create=False) as (_, record):
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


def counted_copy(plan: LadderPlan, message: Message, more: h.Headers, exchange: str = "") -> amqp.Message:
    """Return a copy of a message of the plan's queue, with the broker's attempt count in its headers, and ``more``.

    ``exchange``: the exchange that it came from with its routing key, unless it came from a delay queue.
    """
    raw, queue = message.headers, plan.queue
    routing_key = (message.delivery_info or {})["routing_key"] if exchange else queue
    exchange, routing_key = h.first_route(raw, queue, exchange, routing_key)
    first = h.first_death(raw)
    failed = h.timestamp(first) if first else None
    return copy_of(
        message,
        h.forwarded(
            raw,
            retries=h.retries(raw, queue),
            exchange=exchange,
            routing_key=routing_key,
            more={h.FIRST_FAILED: raw.get(h.FIRST_FAILED) or failed, **more},
        ),
    )


Kind = Literal["queue", "exchange", "policy"]
AGAIN = "Run the command again."


class Deleted(NamedTuple):
    """An object that was deleted, or would be."""

    kind: Kind
    name: str


class Left(NamedTuple):
    """An object that stays: why, and what to do about it."""

    kind: Kind
    name: str
    reason: str
    fix: str


class Problem(NamedTuple):
    """Why a step cannot be taken, and what to do about it."""

    reason: str
    fix: str


class Step(NamedTuple):
    """One change of the broker.

    ``deletes`` is the object that no longer exists afterwards, if any. ``is_due``: whether there is anything to do.
    ``take`` makes the change, or returns why it cannot be made.
    """

    deletes: Deleted | None
    is_due: Callable[[Connection], bool]
    take: Callable[[Connection], Problem | None]


def delete_exchange(name: str, used: Callable[[], Problem] | None = None) -> Step:
    """Delete an exchange; with ``used``, which returns the problem in this case, not while anything is bound to it."""

    def take(connection: Connection) -> Problem | None:
        try:
            with connection.channel() as channel:
                channel.exchange_delete(name, if_unused=used is not None)
        except PreconditionFailed:
            if used is None:
                raise
            return used()
        return None

    return Step(Deleted("exchange", name), lambda connection: apply.exchange_exists(connection, name), take)


def delete_queue(name: str) -> Step:
    """Delete a queue that is empty and unused."""

    def take(connection: Connection) -> Problem | None:
        gone = delete_empty(connection, name)
        return None if gone else Problem("It is in use, or a message has just arrived.", AGAIN)

    return Step(Deleted("queue", name), lambda connection: _has_queue(connection, name), take)


def drop_queue(name: str) -> Step:
    """Delete a queue with its content."""

    def take(connection: Connection) -> None:
        with connection.channel() as channel:
            channel.queue_delete(name)

    return Step(Deleted("queue", name), lambda connection: _has_queue(connection, name), take)


def _has_queue(connection: Connection, name: str) -> bool:
    return apply.inspect_queue(connection, name) is not None


def unbind(queue: str, exchange: str, key: str) -> Step:
    """Remove a binding of a queue."""

    def take(connection: Connection) -> None:
        with suppress(NotFound), connection.channel() as channel:
            apply.unbind(channel, Binding(exchange, queue, key=key))

    return Step(None, lambda connection: apply.exchange_exists(connection, exchange), take)


def no_fence() -> None:
    """Do nothing: other processes make no changes here."""


@dataclass
class Runner:
    """Takes steps, and reports what it has deleted, or would delete in a dry run, and what it had to leave.

    ``fence`` is called before each change, and raises an error where another process may make changes by now.
    """

    connection: Connection
    dry: bool = False
    fence: Callable[[], object] = no_fence
    deleted: list[Deleted] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

    def take(self, step: Step) -> bool:
        """Take one step, if there is anything to do; return False where its object has to stay."""
        if not step.is_due(self.connection):
            return True
        problem = None
        if not self.dry:
            self.fence()
            problem = step.take(self.connection)
        if step.deletes is not None:
            if problem is not None:
                self.leave(*step.deletes, *problem)
            else:
                self.deleted.append(step.deletes)
        return problem is None

    def run(self, plan: Iterable[Step]) -> bool:
        """Take steps in their order up to the first that cannot be taken; return whether all were."""
        return all(map(self.take, plan))

    def run_all(self, plan: Iterable[Step]) -> bool:
        """Take steps that do not need each other; return whether all could be taken."""
        return all([*map(self.take, plan)])

    def leave(self, kind: Kind, name: str, reason: str, fix: str) -> None:
        """Report an object that stays, once."""
        if name not in {each.name for each in self.left if each.kind == kind}:
            self.left.append(Left(kind, name, reason, fix))
