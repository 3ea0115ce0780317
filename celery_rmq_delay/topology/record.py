"""A value kept in the broker itself: a queue with one message, whose exclusive consumer is the lock."""

from __future__ import annotations

import json
import logging
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import amqp
from amqp.exceptions import AccessRefused, ChannelError, ResourceLocked

from ..broker import publish_confirmed
from ..exceptions import LockTimeoutError
from .apply import declare
from .objects import Objects, Queue

if TYPE_CHECKING:
    from kombu import Connection

logger = logging.getLogger(__name__)

_PAUSE = (0.01, 0.1)


class Record:
    """The value under the lock. ``value`` is None where nothing was ever saved."""

    def __init__(self, channel: amqp.Channel, queue: str, held: list[amqp.Message]) -> None:
        self._channel, self._queue, self._held = channel, queue, held
        newest = max(map(_read, held), key=lambda data: data["generation"], default=None)
        self._generation: int = newest["generation"] if newest else 0
        self.value: dict[str, Any] | None = newest["value"] if newest else None
        self._drop(held[:-1])
        self._held = held[-1:]

    def save(self, value: dict[str, Any]) -> None:
        """Replace the value: the new one is confirmed by the broker before the old one goes."""
        self._generation += 1
        body = json.dumps({"generation": self._generation, "value": value})
        publish_confirmed(self._channel, amqp.Message(body, delivery_mode=2), "", self._queue)
        self._drop(self._held)
        self._held, self.value = [], value

    def _drop(self, messages: list[amqp.Message]) -> None:
        for message in messages:
            self._channel.basic_ack(message.delivery_tag)


@contextmanager
def locked_record(connection: Connection, queue: Queue, timeout: float) -> Iterator[tuple[amqp.Channel, Record]]:
    """Hold the record of ``queue`` alone, on a channel of its own; waits for others at most ``timeout`` seconds.

    The lock is the broker's: it ends with the connection of its holder.
    """
    deadline = time.monotonic() + timeout
    while True:
        channel = connection.channel()
        try:
            declare(channel, Objects(queues=(queue,)))
            received: list[amqp.Message] = []
            tag = channel.basic_consume(queue.name, exclusive=True, callback=received.append)
            break
        except (AccessRefused, ResourceLocked) as error:
            if time.monotonic() > deadline:
                raise LockTimeoutError(
                    f"The record {queue.name} was held by another process for {timeout:g} s: look for a hanging "
                    "`rmq-delay apply` or worker start among the broker's connections and end it."
                ) from error
            time.sleep(random.uniform(*_PAUSE))  # noqa: S311 - spreads the waiting processes, no secret
    try:
        held = _until_marker(connection, channel, queue.name, received, deadline)
        record = Record(channel, queue.name, held)
        yield channel, record
        channel.basic_cancel(tag)
    finally:
        if channel.is_open:
            channel.close()  # gives the message back


def _until_marker(
    connection: Connection, channel: amqp.Channel, queue: str, received: list[amqp.Message], deadline: float
) -> list[amqp.Message]:
    """Return the records of the queue. A marker published behind them says when all have been seen."""
    marker = uuid.uuid4().hex
    publish_confirmed(channel, amqp.Message(marker, type="marker", delivery_mode=1), "", queue)
    while not any(message.body == marker for message in received):
        connection.drain_events(timeout=max(0.1, deadline - time.monotonic()))
    held = []
    for message in received:
        if message.properties.get("type") == "marker":
            channel.basic_ack(message.delivery_tag)
        else:
            held.append(message)
    held.sort(key=lambda message: _read(message)["generation"])
    return held


def _read(message: amqp.Message) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(message.body)
    return data


def peek_record(connection: Connection, queue: str) -> dict[str, Any] | None:
    """Return the value without taking the lock; None where there is none, or somebody holds it."""
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
        message = channel.basic_get(queue)
        if message is None or message.properties.get("type") == "marker":
            return None
        value: dict[str, Any] | None = _read(message)["value"]
    except ChannelError:
        return None
    else:
        return value
    finally:
        if channel.is_open:
            channel.close()
