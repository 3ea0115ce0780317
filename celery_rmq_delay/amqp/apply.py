"""Declaration and comparison of broker objects, on an open AMQP channel or connection."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from amqp import Channel, spec
from amqp.exceptions import AccessRefused, ChannelError, NotFound, PreconditionFailed
from kombu import Connection

from ..commands import command
from ..exceptions import ConflictError, LockLostError, TopologyError
from .objects import Binding, Exchange, Objects, Queue

#: Seconds for which the counts of a queue hold: a process may hang between two statements.
_FRESH = 1.0


def declare(channel: Channel, objects: Objects, words: str = "apply") -> None:
    """Declare all objects in one pipelined burst; existing ones stay as they are.

    Raises `ConflictError` where an object exists with other arguments, `TopologyError` where a limit of the broker is
    reached or the user may not configure it; ``words``: see `command`, the one that declares it for another user.
    """
    with _explained(words):
        for found in objects:
            declare_nowait(channel, found)
        synchronise(channel)


def all_exist(connection: Connection, objects: Objects) -> bool:
    """Return whether every exchange and queue exists, with any arguments. Checks in one pipelined burst."""
    try:
        with connection.channel() as channel:
            for exchange in objects.exchanges:
                _declare_passive(channel, exchange, nowait=True)
            for queue in objects.queues:
                _declare_passive(channel, queue, nowait=True)
            synchronise(channel)
    except NotFound:
        return False
    return True


def _declare_passive(channel: Channel, found: Exchange | Queue, *, nowait: bool) -> None:
    if isinstance(found, Exchange):
        channel.exchange_declare(found.name, found.type, passive=True, nowait=nowait)
    else:
        channel.queue_declare(found.name, passive=True, nowait=nowait)


def ensure_queue(connection: Connection, queue: Queue, words: str = "apply") -> None:
    """Declare ``queue`` unless a queue of that name exists, with any arguments. Raises errors as `declare` does."""
    if ready_counts(connection, [queue.name])[queue.name] is None:
        # Refused where another process declared it in between, with another type.
        declare_queue(connection, queue, words)


def declare_queue(connection: Connection, queue: Queue, words: str = "apply") -> bool:
    """Declare ``queue``; return False where a queue of that name exists with other arguments."""
    try:
        with connection.channel() as channel:
            declare(channel, Objects(queues=(queue,)), words)
    except ConflictError:
        return False
    return True


def delete_unused(connection: Connection, queue: Queue, lock: Channel | None = None) -> bool:
    """Delete a queue without consumers and messages; a quorum queue on ``lock``. Return whether it is gone."""
    began, declared = time.monotonic(), inspect_queue(connection, queue.name)
    if declared is None:
        return True
    if declared.message_count or declared.consumer_count:
        return False
    # Quorum queues cannot be deleted on condition (540 closes the connection), so only fresh counts protect them.
    on_condition = queue.arguments.get("x-queue-type") != "quorum"
    try:
        with nullcontext(lock) if lock is not None and not on_condition else connection.channel() as channel:
            if not on_condition and time.monotonic() - began > _FRESH:
                return False
            channel.queue_delete(queue.name, if_unused=on_condition, if_empty=on_condition)
    except PreconditionFailed as error:
        check_held(error)
        return False
    return True


def delete_exchange(channel: Channel, name: str) -> None:
    """Delete an exchange, if it exists. Raises `TopologyError` as `declare` does."""
    with _explained():
        channel.exchange_delete(name)


def unbind(channel: Channel, *bindings: Binding) -> None:
    """Remove bindings, if they exist, those between exchanges in one pipelined burst."""
    with _explained():
        for each in bindings:
            if each.to == "queue":
                channel.queue_unbind(each.destination, each.source, each.key, arguments=each.arguments)
            else:
                channel.exchange_unbind(each.destination, each.source, each.key, nowait=True, arguments=each.arguments)
        synchronise(channel)


def synchronise(channel: Channel) -> None:
    """Wait until the broker has handled everything sent on ``channel`` before."""
    channel.flow(True)  # changes nothing and needs no permission; in RabbitMQ 4.3 methods that name an object do


def declare_nowait(channel: Channel, found: Exchange | Queue | Binding) -> None:
    """Declare one object without waiting for the reply; a refusal closes the channel."""
    if isinstance(found, Exchange):
        channel.exchange_declare(
            found.name, found.type, durable=True, auto_delete=found.auto_delete, nowait=True, arguments=found.arguments
        )
    elif isinstance(found, Queue):
        channel.queue_declare(found.name, durable=True, auto_delete=False, nowait=True, arguments=found.arguments)
    elif found.to == "queue":
        channel.queue_bind(found.destination, found.source, found.key, nowait=True, arguments=found.arguments)
    else:
        channel.exchange_bind(found.destination, found.source, found.key, nowait=True, arguments=found.arguments)


def renew(channel: Channel, queue: Queue) -> None:
    """Renew the lease of a queue by its declaration, without waiting; ``nowait`` would not (3.10, 4.0, 4.3)."""
    channel.send_method(
        spec.Queue.Declare, "BsbbbbbF", (0, queue.name, False, True, False, False, False, queue.arguments)
    )


def is_timed_out(error: Exception) -> bool:
    """Return whether RabbitMQ closed a channel because of its ``consumer_timeout``."""
    return "delivery acknowledgement on channel" in str(getattr(error, "reply_text", ""))


def check_held(error: Exception) -> None:
    """Raise `LockLostError` where a channel was closed by a time-out: among those for applying, that is the lock's."""
    if is_timed_out(error):
        raise lock_lost() from error


def lock_lost() -> LockLostError:
    """Return the error of a process whose lock on a record was taken back."""
    return LockLostError(
        "RabbitMQ has taken back the lock on the record of this ladder, because this process held it for too long "
        "(consumer_timeout) or was cut off. Another process may change the ladder now, so this one has stopped. Run "
        f"`{command('plan')}`, and apply again if it shows changes."
    )


def check_limit(error: PreconditionFailed) -> None:
    """Raise `TopologyError` if a declaration was refused because of a limit, not because of other arguments."""
    if re.search(r"\blimit\b.* is reached", str(error.reply_text), re.DOTALL):
        raise TopologyError(
            f"{error.reply_text}. Raise the limit (of a vhost: `rabbitmqctl set_vhost_limits`, max-queues), or set "
            "exact_levels to fewer: the first use of an exact delay declares a queue for each level, 28 by default."
        ) from error


@contextmanager
def _explained(words: str = "apply") -> Iterator[None]:
    try:
        yield
    except PreconditionFailed as error:
        check_held(error)
        check_limit(error)
        raise ConflictError(
            f"{error.reply_text}. The object exists with other arguments, and RabbitMQ cannot change them: "
            f"`{command('doctor')}` lists the differences; drain and delete it, then apply again."
        ) from error
    except AccessRefused as error:
        raise TopologyError(
            f"{error.reply_text}. The broker's user may not declare or bind this object: let "
            f"`{command(words)}` run as a user who may, and set apply_on_start=False."
        ) from error


@dataclass(frozen=True)
class Drift:
    """One difference between plan and broker."""

    kind: str
    name: str
    problem: str

    @property
    def difference(self) -> str:
        """A description of the difference, for display."""
        return f"The {self.kind} {self.name} is not as planned. {self.problem}"


def drift(connection: Connection, objects: Objects) -> list[Drift]:
    """Return the missing objects, and those with other arguments; AMQP lists no bindings. Changes nothing."""
    planned: tuple[Exchange | Queue, ...] = (*objects.exchanges, *objects.queues)
    return [
        Drift("exchange" if isinstance(each, Exchange) else "queue", each.name, problem)
        for each in planned
        if (problem := _problem(connection, each))
    ]


def _problem(connection: Connection, found: Exchange | Queue) -> str | None:
    exists = False
    try:
        with connection.channel() as channel:
            _declare_passive(channel, found, nowait=False)
            exists = True
            # The queue or exchange exists, so an active declaration compares the arguments and creates nothing.
            declare_nowait(channel, found)
            synchronise(channel)
    except NotFound:
        return "missing"
    except AccessRefused as error:  # without the permission to declare it, its existence has to be enough
        return None if exists else str(error.reply_text)
    except ChannelError as error:
        return str(error.reply_text)
    return None


def ready_counts(connection: Connection, queues: Iterable[str]) -> dict[str, int | None]:
    """Return the number of ready messages by queue; None for one that does not exist."""
    counts: dict[str, int | None] = {}
    channel = connection.channel()
    try:
        for name in queues:
            try:
                counts[name] = channel.queue_declare(name, passive=True).message_count
            except NotFound:  # noqa: PERF203 - each reply is a round trip to the broker
                counts[name] = None
                channel.close()
                channel = connection.channel()
    finally:
        channel.close()
    return counts


def consumer_count(connection: Connection, queue: str) -> int | None:
    """Return the number of consumers of a queue; None where it does not exist."""
    declared = inspect_queue(connection, queue)
    return None if declared is None else int(declared.consumer_count)


def unconsumed(connection: Connection, queue: str) -> int | None:
    """Return the number of ready messages of a queue without consumers; None where it has one or does not exist."""
    declared = inspect_queue(connection, queue)
    return None if declared is None or declared.consumer_count else int(declared.message_count)


def exchange_exists(connection: Connection, name: str) -> bool:
    """Return whether an exchange exists, of any type."""
    try:
        with connection.channel() as channel:
            channel.exchange_declare(name, "topic", passive=True)
    except NotFound:
        return False
    return True


def inspect_queue(connection: Connection, queue: str) -> Any:
    """Return the reply to a passive declaration of a queue; None where it does not exist."""
    try:
        with connection.channel() as channel:
            return channel.queue_declare(queue, passive=True)
    except NotFound:
        return None
