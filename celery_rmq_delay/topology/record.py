"""A value kept in the broker itself: a queue with one message, whose single active consumer holds the lock."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import amqp
from amqp.exceptions import InternalError

from ..broker import CONFIRM_TIMEOUT, publish_confirmed
from ..exceptions import LockTimeoutError
from .apply import declare, ready_counts
from .objects import Objects, Queue

if TYPE_CHECKING:
    from kombu import Connection

#: What the queue of a record has to be declared with. A consumer that is `exclusive` would not do: quorum queues let
#: several consumers be that at a time (measured on 3.10, 4.0 and 4.3).
LOCKABLE = {"x-single-active-consumer": True}

_PAUSE = (0.01, 0.1)
_MARKER = "marker"
#: Milliseconds that a marker outlives the wait of the process that published it.
_MARKER_REST = 5_000


class Record:
    """The value under the lock. ``value`` is None where nothing was ever saved."""

    def __init__(self, channel: amqp.Channel, queue: str, received: list[amqp.Message]) -> None:
        self._channel, self._queue, self._received = channel, queue, received
        newest = max(map(_read, filter(_is_record, received)), key=lambda data: data["generation"], default=None)
        self._generation: int = newest["generation"] if newest else 0
        self.value: dict[str, Any] | None = newest["value"] if newest else None
        self._drop_older()

    def save(self, value: dict[str, Any]) -> None:
        """Replace the value: the new one is confirmed by the broker before the old one goes."""
        self._generation += 1
        body = json.dumps({"generation": self._generation, "value": value})
        publish_confirmed(self._channel, amqp.Message(body, delivery_mode=2), "", self._queue)
        self.value = value
        while not any(message.body == body for message in self._received):  # it comes back, as to any consumer
            self._channel.connection.drain_events(timeout=CONFIRM_TIMEOUT)
        self._drop_older()

    def _drop_older(self) -> None:
        for message in [each for each in self._received if _is_record(each)]:
            if _read(message)["generation"] < self._generation:
                self._received.remove(message)
                self._channel.basic_ack(message.delivery_tag)


@contextmanager
def locked_record(
    connection: Connection, queue: Queue, timeout: float, *, create: bool = True
) -> Iterator[tuple[amqp.Channel, Record]]:
    """Hold the record of ``queue`` alone, on a channel of its own; waits for others at most ``timeout`` seconds.

    The lock is the broker's: it ends with the channel of its holder, in one step with the return of the message, so the
    next holder never finds an empty queue. With ``create=False`` the queue has to exist. Raises `LockTimeoutError`.
    """
    deadline = time.monotonic() + timeout
    received: list[amqp.Message] = []
    channel = _consuming(connection, queue, received, deadline, create=create)
    try:
        _wait_until_active(connection, channel, queue.name, received, timeout, deadline)
        yield channel, Record(channel, queue.name, received)
    finally:
        if channel.is_open:
            channel.close()


def _consuming(
    connection: Connection, queue: Queue, received: list[amqp.Message], deadline: float, *, create: bool
) -> amqp.Channel:
    while True:
        channel = connection.channel()
        try:
            if create:
                declare(channel, Objects(queues=(queue,)))
            channel.basic_consume(queue.name, callback=received.append)
        except InternalError:
            # Somebody else is creating this quorum queue, which cannot be used yet: 3.10 and 4.0 close the connection.
            if time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(*_PAUSE))  # noqa: S311 - spreads the waiting processes, no secret
        else:
            return channel


def _wait_until_active(
    connection: Connection,
    channel: amqp.Channel,
    queue: str,
    received: list[amqp.Message],
    timeout: float,
    deadline: float,
) -> None:
    """Wait for a marker that went from here to nobody but here: then all that was in the queue has been received.

    One that somebody else held meanwhile comes back marked as redelivered, and may come before what its holder saved.
    """
    while True:
        name = uuid.uuid4().hex
        expiration = str(round(timeout * 1000) + _MARKER_REST)
        publish_confirmed(channel, amqp.Message(name, type=_MARKER, delivery_mode=1, expiration=expiration), "", queue)
        marker = None
        while marker is None:
            marker = next((message for message in received if message.body == name), None)
            if marker is None:
                _drain(connection, queue, deadline, timeout)
        received.remove(marker)
        channel.basic_ack(marker.delivery_tag)
        if not marker.delivery_info["redelivered"]:
            return


def _drain(connection: Connection, queue: str, deadline: float, timeout: float) -> None:
    try:
        left = deadline - time.monotonic()
        if left > 0:
            connection.drain_events(timeout=left)
            return
    except TimeoutError:
        pass
    raise LockTimeoutError(
        f"The record {queue} was held by another process for {timeout:g} s: look for a hanging "
        "`rmq-delay apply` or worker start among the broker's connections and end it."
    )


def _is_record(message: amqp.Message) -> bool:
    return bool(message.properties.get("type") != _MARKER)


def _read(message: amqp.Message) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(message.body)
    return data


def peek_record(connection: Connection, queue: Queue, timeout: float = 5.0) -> dict[str, Any] | None:
    """Return the value; None where nothing was saved. Creates nothing.

    Takes the lock for an instant, because a record in anybody else's hands is one that its holder cannot see. Raises
    `LockTimeoutError` after ``timeout`` seconds.
    """
    if ready_counts(connection, [queue.name])[queue.name] is None:
        return None
    with locked_record(connection, queue, timeout, create=False) as (_, record):
        return record.value
