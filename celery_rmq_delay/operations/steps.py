"""Steps that delete objects of the broker, and the one runner that takes and reports them.

A plan is a list of steps. Each can be taken again, so the next run continues after a crash. In a dry run the runner
changes nothing, and reports the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from amqp.exceptions import NotFound, PreconditionFailed

from ..amqp import apply
from ..amqp.objects import Binding
from . import deletion

if TYPE_CHECKING:
    from kombu import Connection

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
        gone = deletion.delete_empty(connection, name)
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
