"""The edge between plans and a broker: declare objects, compare them. Every function takes an open AMQP channel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amqp.exceptions import AccessRefused, ChannelError, NotFound, PreconditionFailed

from ..exceptions import TopologyError
from .objects import Binding, Exchange, Objects, Queue

if TYPE_CHECKING:
    from amqp import Channel
    from kombu import Connection


def declare(channel: Channel, objects: Objects) -> None:
    """Declare everything in one pipelined burst; what is there already stays as it is.

    Raises `TopologyError` where an object exists with other arguments, or the user may not configure it.
    """
    with _explained():
        for found in objects:
            _declare_nowait(channel, found)
        synchronise(channel)


def all_exist(connection: Connection, objects: Objects) -> bool:
    """Return whether every exchange and queue is there, whatever its arguments. Asks in one pipelined burst."""
    channel = connection.channel()
    try:
        for exchange in objects.exchanges:
            channel.exchange_declare(exchange.name, exchange.type, passive=True, nowait=True)
        for queue in objects.queues:
            channel.queue_declare(queue.name, passive=True, nowait=True)
        synchronise(channel)
    except NotFound:
        return False
    finally:
        _close(channel)
    return True


def ensure_queue(connection: Connection, queue: Queue) -> None:
    """Declare ``queue`` unless a queue of that name exists, whatever its arguments."""
    if ready_counts(connection, [queue.name])[queue.name] is not None:
        return
    channel = connection.channel()
    try:
        _declare_nowait(channel, queue)
        synchronise(channel)
    except PreconditionFailed:
        pass  # somebody else declared it in between, as another type
    finally:
        _close(channel)


def bind(channel: Channel, binding: Binding) -> None:
    """Add one binding."""
    with _explained():
        _declare_nowait(channel, binding)
        synchronise(channel)


def unbind(channel: Channel, binding: Binding) -> None:
    """Remove one binding; one that is not there is no error."""
    with _explained():
        if binding.to == "queue":
            channel.queue_unbind(binding.destination, binding.source, binding.key, arguments=binding.arguments)
        else:
            channel.exchange_unbind(binding.destination, binding.source, binding.key, arguments=binding.arguments)


def synchronise(channel: Channel) -> None:
    """Wait until the broker has handled everything sent on ``channel`` before."""
    channel.exchange_declare("amq.direct", "direct", passive=True)


def _declare_nowait(channel: Channel, found: Exchange | Queue | Binding) -> None:
    if isinstance(found, Exchange):
        channel.exchange_declare(
            found.name, found.type, durable=True, auto_delete=False, nowait=True, arguments=found.arguments
        )
    elif isinstance(found, Queue):
        channel.queue_declare(found.name, durable=True, auto_delete=False, nowait=True, arguments=found.arguments)
    elif found.to == "queue":
        channel.queue_bind(found.destination, found.source, found.key, nowait=True, arguments=found.arguments)
    else:
        channel.exchange_bind(found.destination, found.source, found.key, nowait=True, arguments=found.arguments)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except PreconditionFailed as error:
        raise TopologyError(
            f"{error.reply_text}. The object exists with other arguments, and RabbitMQ cannot change them: "
            "`celery -A proj rmq-delay doctor` lists the differences; drain and delete it, then apply again."
        ) from error
    except AccessRefused as error:
        raise TopologyError(
            f"{error.reply_text}. The broker's user may not configure this object: let "
            "`celery -A proj rmq-delay apply` run as a user who may, and set apply_on_start=False."
        ) from error


@dataclass(frozen=True)
class Drift:
    """One difference between plan and broker."""

    kind: str
    name: str
    problem: str


def drift(connection: Connection, objects: Objects) -> list[Drift]:
    """Return what is missing or has other arguments in the broker. Changes nothing.

    Bindings cannot be listed over AMQP: the record of the applied ladder stands for them.
    """
    found = []
    planned: list[tuple[str, Exchange | Queue]] = [
        *(("exchange", exchange) for exchange in objects.exchanges),
        *(("queue", queue) for queue in objects.queues),
    ]
    for kind, each in planned:
        problem = _problem(connection, each)
        if problem:
            found.append(Drift(kind, each.name, problem))
    return found


def _problem(connection: Connection, found: Exchange | Queue) -> str | None:
    channel = connection.channel()
    try:
        if isinstance(found, Exchange):
            channel.exchange_declare(found.name, found.type, passive=True)
        else:
            channel.queue_declare(found.name, passive=True)
        # It exists, so that an active declare compares the arguments and creates nothing.
        _declare_nowait(channel, found)
        synchronise(channel)
    except NotFound:
        return "missing"
    except ChannelError as error:
        return str(error.reply_text)
    finally:
        _close(channel)
    return None


def ready_counts(connection: Connection, queues: Iterable[str]) -> dict[str, int | None]:
    """Return the number of ready messages by queue; None for one that does not exist."""
    counts: dict[str, int | None] = {}
    channel = connection.channel()
    try:
        for name in queues:
            try:
                counts[name] = channel.queue_declare(name, passive=True).message_count
            except NotFound:  # noqa: PERF203 - each answer is a round trip to the broker
                counts[name] = None
                _close(channel)
                channel = connection.channel()
    finally:
        _close(channel)
    return counts


def _close(channel: Channel) -> None:
    if channel.is_open:
        channel.close()
