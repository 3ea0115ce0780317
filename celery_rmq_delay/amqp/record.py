"""A value stored in the broker: a queue with one message, whose single active consumer holds the lock.

A queue cannot change its type. Where the record's queue has another type than planned, the holder of the lock replaces
it:

1. It saves the value marked as moving, and publishes a copy to the queue ``<record>.moving``.
2. It deletes the record's queue, and the lock with it; processes that wait for the lock start over.
3. It declares the record's queue as planned and takes the lock like any other process.

A process that takes the lock and finds no value saves that of the copy, marked as moving; one that finds the mark
deletes the copy. So the value is in one of the two queues at every step, and the next holder continues after a crash.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, cast

import amqp
from amqp.exceptions import ConsumerCancelled, InternalError, NotFound, PreconditionFailed
from kombu import Connection

from ..exceptions import (
    BrokerBlockedError,
    ConflictError,
    LockLostError,
    LockTimeoutError,
    NackedError,
    RecordGoneError,
    UnroutableError,
)
from ..names import moving
from . import apply
from .apply import declare, inspect_queue, is_timed_out, lock_lost, synchronise
from .capabilities import capabilities
from .confirms import CONFIRM_TIMEOUT, publisher_on
from .objects import Binding, Objects, Queue
from .route import Route

#: The arguments of a record's queue. An `exclusive` consumer does not suffice: quorum queues allow several of them at a
#: time (measured on 3.10, 4.0 and 4.3).
LOCKABLE = {"x-single-active-consumer": True}

#: The argument of a consumer, and the milliseconds after which RabbitMQ 4.3 takes the lock back.
_TIME_OUT = "x-consumer-timeout"
_NEVER_MS = 365 * 24 * 3_600_000
_PAUSE = (0.01, 0.1)
_MARKER = "marker"
#: Milliseconds that a marker outlives the wait of the process that published it.
_MARKER_REST = 5_000
#: Seconds after which a process that waits for the lock starts over: RabbitMQ 3.10.8 does not always notify a waiting
#: consumer that its queue was deleted if another queue of that name is declared at once.
_START_OVER = 2.0


class Record:
    """The value under the lock, None if nothing was saved. ``moving``: another queue may have a copy of the value."""

    def __init__(self, channel: amqp.Channel, queue: str, received: list[amqp.Message], cancelled: list[str]) -> None:
        self._channel, self._queue, self._received, self._cancelled = channel, queue, received, cancelled
        newest = _newest(received)
        self._generation: int = newest["generation"]
        self.value: dict[str, Any] | None = newest["value"]
        self.moving: bool = newest.get("moving", False)
        self._drop_older()

    def check(self) -> None:
        """Raise `LockLostError` where the broker has taken the lock back; reads all that it has sent so far."""
        synchronise(self._channel)  # `locked_record` explains an error of the channel
        if self._cancelled:
            raise lock_lost()

    def save(self, value: dict[str, Any]) -> None:
        """Replace the value: the broker confirms the new one before the old one is removed.

        Raises `LockLostError`. The value that a process saves at the moment in which it loses the lock is not newer
        than what the next holder saves.
        """
        self.check()
        self._generation += 1
        self.value = value
        body = self._publish(self._queue)
        while not any(message.body == body for message in self._received):  # it is delivered to this consumer, too
            self._channel.connection.drain_events(timeout=CONFIRM_TIMEOUT)
        self._drop_older()

    def declare(self, objects: Objects) -> None:
        """Declare objects, as `apply.declare` does. Raises `LockLostError`, like each change under the lock."""
        apply.declare(self._held(), objects)

    def unbind(self, *bindings: Binding) -> None:
        """Remove bindings, if they exist."""
        apply.unbind(self._held(), *bindings)

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange, if it exists."""
        apply.delete_exchange(self._held(), name)

    def delete_unused(self, connection: Connection, queue: Queue) -> bool:
        """Delete a queue that has no consumer and no ready message; return whether it is gone."""
        return apply.delete_unused(connection, queue, self._held())

    def start_move(self, copy: Queue) -> None:
        """Copy the value to the queue ``copy``, then delete the record's queue, and the lock with it."""
        if self.value is not None:
            self.moving = True
            self.save(self.value)
            self._channel.queue_delete(copy.name)
            self.declare(Objects(queues=(copy,)))
            self._publish(copy.name)
        self._held().queue_delete(self._queue)

    def finish_move(self, copy: Queue, value: dict[str, Any] | None) -> None:
        """Save the value of the queue ``copy`` where the record has none, and delete that queue."""
        if self.value is None and value is not None:
            self.moving = True
            self.save(value)
        if self.moving:
            self._held().queue_delete(copy.name)
            self.moving = False

    def _held(self) -> amqp.Channel:
        """Return the channel for one change. Raises `LockLostError`."""
        self.check()
        return self._channel

    def _publish(self, queue: str) -> str:
        body = json.dumps({"generation": self._generation, "value": self.value, "moving": self.moving})
        publisher_on(self._channel).send(amqp.Message(body, delivery_mode=2), Route("", queue))
        return body

    def _drop_older(self) -> None:
        for message in [each for each in self._received if _is_record(each)]:
            if _read(message)["generation"] < self._generation:
                self._received.remove(message)
                self._channel.basic_ack(message.delivery_tag)


class _StartOverError(Exception):
    """The queue was deleted while this process waited for the lock, or may have been."""


@contextmanager
def locked_record(
    connection: Connection, queue: Queue, timeout: float, *, create: bool = True
) -> Iterator[tuple[amqp.Channel, Record]]:
    """Hold the lock on the record of ``queue``, on a new channel; wait for it at most ``timeout`` seconds.

    The broker releases the lock when the holder's channel closes, in one step with the requeue of the message, so the
    next holder never finds an empty queue. A queue of another type is replaced. With ``create=False`` it is used as it
    is, with any type, and `RecordGoneError` is raised where it does not exist. Raises `LockTimeoutError`, and
    `BrokerBlockedError` in an alarm of the broker and `LockLostError`, which end the connection.
    """
    lock = _Lock(connection, queue, timeout)
    try:
        record = lock.acquire(create=create)
        while create:
            copied = _read_copy(connection, _copy_of(queue), timeout) if record.value is None else None
            record.finish_move(_copy_of(queue), copied)
            if lock.as_declared:
                break
            record.start_move(_copy_of(queue))
            lock.release()
            record = lock.acquire(create=True)
        yield lock.channel, record
    except (BrokerBlockedError, LockLostError):
        connection.collect()  # the broker would not read a request to close it, or has closed the channel
        raise
    except (ConsumerCancelled, PreconditionFailed) as error:  # read while another channel waited for a reply
        if isinstance(error, PreconditionFailed) and not is_timed_out(error):
            raise
        connection.collect()
        raise lock_lost() from error
    finally:
        lock.close()


class _Lock:
    """A consumer that waits to become the active one of a record's queue."""

    def __init__(self, connection: Connection, queue: Queue, timeout: float) -> None:
        self.connection, self.queue, self.timeout = connection, queue, timeout
        self.deadline = time.monotonic() + timeout
        self.channel: amqp.Channel = None
        #: Whether the queue has the planned arguments.
        self.as_declared = True
        #: Whether the queue was found to be a classic one.
        self._is_classic = False
        self._received: list[amqp.Message] = []
        self._cancelled: list[str] = []
        self._opened: Any = None
        self._on_blocked: Any = None

    def acquire(self, *, create: bool) -> Record:
        self._is_classic = self.queue.arguments.get("x-queue-type") != "quorum"  # unless it has not the planned type
        while (gone := self._try(create)) is not None:
            self.release()
            if not create and isinstance(gone, NotFound):
                text = f"The record {self.queue.name} is gone: another process may be replacing it. Try again."
                raise RecordGoneError(text) from gone
            if time.monotonic() > self.deadline:
                raise self._timed_out() from gone
            time.sleep(random.uniform(*_PAUSE))  # noqa: S311 - spreads the waiting processes, no secret
        return Record(self.channel, self.queue.name, self._received, self._cancelled)

    def _try(self, create: bool) -> Exception | None:
        """Wait for the lock; return the error of a queue that is created (before 4.3 `InternalError`) or replaced."""
        try:
            self._consume(create)
            self._wait_until_active()
        except (InternalError, NotFound, NackedError, UnroutableError, _StartOverError) as error:
            return error
        except PreconditionFailed as error:
            if _TIME_OUT not in str(error.reply_text):
                raise
            self._is_classic = True
            return error
        return None

    def close(self) -> None:
        self.release()
        if self._opened is not None:
            self._opened.on_blocked = self._on_blocked

    def _heed_alarms(self) -> None:
        """Raise `BrokerBlockedError` as soon as the broker blocks the connection: no confirm comes in an alarm."""
        opened: Any = self.channel.connection
        if opened is not self._opened:
            self._opened, self._on_blocked = opened, opened.on_blocked
            opened.on_blocked = _refuse

    def _probe(self) -> None:
        """Publish to no queue: in an alarm, a consumer on a connection that ends would hold the record further."""
        nowhere = Route("", f"{self.queue.name}.probe", mandatory=False)
        publisher_on(self.channel).send(amqp.Message(), nowhere)

    def release(self) -> None:
        if self.channel is not None and self.channel.is_open:
            self.channel.close()

    def _consume(self, create: bool) -> None:
        self._received, self._cancelled = [], []
        self.channel, self.as_declared = self.connection.channel(), True
        self._heed_alarms()
        if create:
            try:
                declare(self.channel, Objects(queues=(self.queue,)))
            except ConflictError:  # which has closed the channel
                self.channel, self.as_declared = self.connection.channel(), False
        self._probe()
        self.channel.basic_consume(
            self.queue.name,
            callback=self._received.append,
            on_cancel=self._cancelled.append,
            arguments=self._arguments(),
        )

    def _arguments(self) -> dict[str, int]:
        """Return the arguments by which RabbitMQ 4.3 takes nothing back from a consumer of a quorum queue.

        A classic queue has no time-out there, and refuses them. For a quorum queue it would cancel the consumer, and go
        on to accept what the channel sends. Before 4.3 it closes the channel, and ignores what a process sends that
        does not know it yet; the lock is free when this process has answered.
        """
        cancels = not self._is_classic and capabilities(self.connection).cancels_at_time_out
        return {_TIME_OUT: _NEVER_MS} if cancels else {}

    def _wait_until_active(self) -> None:
        """Wait for a marker that only this process has received: then the value of the last holder is here, too."""
        expiration = str(round(self.timeout * 1000) + _MARKER_REST)
        while True:
            name = uuid.uuid4().hex
            marker = amqp.Message(name, type=_MARKER, delivery_mode=1, expiration=expiration)
            publisher_on(self.channel).send(marker, Route("", self.queue.name))
            found, until = None, time.monotonic() + _START_OVER
            while found is None:
                found = next((message for message in self._received if message.body == name), None)
                if found is None:
                    self._drain(until)
            self._received.remove(found)
            self.channel.basic_ack(found.delivery_tag)
            if not found.delivery_info["redelivered"]:
                return

    def _drain(self, until: float) -> None:
        left = min(self.deadline, until) - time.monotonic()
        if left > 0 and not self._cancelled:
            with suppress(TimeoutError):
                self.connection.drain_events(timeout=left)
        elif time.monotonic() < self.deadline:
            raise _StartOverError
        else:
            raise self._timed_out()

    def _timed_out(self) -> LockTimeoutError:
        return LockTimeoutError(
            f"The record {self.queue.name} was held by another process for {self.timeout:g} s: look for a hanging "
            "`rmq-delay apply` or worker start among the broker's connections and end it."
        )


def _refuse(_reason: str) -> None:
    raise BrokerBlockedError(
        "RabbitMQ has a memory or disk alarm, so it blocks publishing connections: free memory or "
        "disk space. `rabbitmq-diagnostics alarms` lists the alarms."
    )


def _copy_of(queue: Queue) -> Queue:
    return replace(queue, name=moving(queue.name))


def _is_record(message: amqp.Message) -> bool:
    return bool(message.properties.get("type") != _MARKER)


def _read(message: amqp.Message) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(message.body))


def _newest(received: list[amqp.Message]) -> dict[str, Any]:
    nothing = {"generation": 0, "value": None}
    return max(map(_read, filter(_is_record, received)), key=lambda data: data["generation"], default=nothing)


def read_record(connection: Connection, queue: Queue, timeout: float = 5.0) -> dict[str, Any] | None:
    """Return the value, or None; creates nothing. Takes the lock for a moment, or raises `LockTimeoutError`."""
    copy, deadline = _copy_of(queue), time.monotonic() + timeout
    # The first queue is checked again at the end: the value may have moved back to it meanwhile.
    while any(inspect_queue(connection, each.name) for each in (queue, copy, queue)) and time.monotonic() < deadline:
        with suppress(RecordGoneError), locked_record(connection, queue, timeout, create=False) as (_, record):
            return record.value or _read_copy(connection, copy, timeout)
        if (value := _read_copy(connection, copy, timeout)) is not None:
            return value
    return None


def _read_copy(connection: Connection, copy: Queue, timeout: float) -> dict[str, Any] | None:
    if inspect_queue(connection, copy.name) is None:
        return None
    with suppress(RecordGoneError), locked_record(connection, copy, timeout, create=False) as (_, record):
        return record.value
    return None


def read_record_without_publishing(connection: Connection, queue: Queue, timeout: float = 2.0) -> dict[str, Any] | None:
    """Return a saved value, after a crash the one before the last, or None. Publishes nothing: it works in an alarm."""
    if inspect_queue(connection, queue.name) is None:
        return None
    deadline = time.monotonic() + timeout
    received: list[amqp.Message] = []
    channel = connection.channel()
    try:
        channel.basic_consume(queue.name, callback=received.append)
        while not any(map(_is_record, received)) and (left := deadline - time.monotonic()) > 0:
            with suppress(TimeoutError):
                connection.drain_events(timeout=left)
    finally:
        channel.close()
    return cast("dict[str, Any] | None", _newest(received)["value"])
