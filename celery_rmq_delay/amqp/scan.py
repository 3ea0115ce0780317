"""Inspection of all messages of a queue, and removal of the wanted ones.

AMQP delivers only from the head of a queue. So a scan holds the messages that it has seen, unacknowledged, on its own
channel, and requeues those that were not removed at the end. It requeues them one by one, in small bursts: a quorum
queue keeps the order of single rejects that it can handle at once (measured on 3.10, 4.0 and 4.3), but shuffles the
messages of a closed channel or a longer burst, and then messages with a TTL return late.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import amqp
from amqp.exceptions import AccessRefused, ChannelError, NotFound
from kombu import Connection
from kombu.message import Message

from ..commands import command
from ..exceptions import OutcomeUnknownError, TopologyError
from .apply import inspect_queue
from .capabilities import Capabilities, capabilities
from .confirms import end_with_channel, publisher_on, refusal
from .route import Route

#: The default for the number of messages of one queue that a scan reads.
SCAN_LIMIT = 100_000
#: The same for parked messages where an inspection leaves a trace: each inspected message runs alone once, when due.
TRACED_SCAN_LIMIT = 1_000

#: RabbitMQ's client of a quorum queue forwards up to 32 commands before it starts to merge them.
_BURST = 16
#: Seconds to wait for each burst to arrive.
_BURST_TIMEOUT = 0.05
#: Additional seconds to wait in total: for messages of a queue without other consumers, and for messages that others
#: may receive, or that may have expired meanwhile.
_ALONE, _NOT_ALONE = 5.0, 1.0
#: Seconds to wait for a message for the scan's consumer; other consumers may have received all.
_DELIVERY_TIMEOUT = 1.0


def inspection_leaves_no_trace(broker: Capabilities) -> bool:
    """Return whether a parked message returns from an inspection without a flag (3.10.8, 4.0.5; not 4.3.6)."""
    return not broker.flags_returned


class Scan:
    """An iterable of the messages that a queue has when the scan begins, each once; see `scanning`."""

    def __init__(
        self, connection: Connection, channel: Any, queue: str, most: int, *, is_delay_queue: bool, releases: bool
    ) -> None:
        self._connection, self._channel, self._queue, self._most = connection, channel, queue, most
        self._is_delay_queue = is_delay_queue
        self._releases = releases
        #: The consumer that protects the queue from deletion as empty and unused.
        self._guard: str | None = None
        #: Whether the queue had consumers when the scan began.
        self.shared = False
        #: The delivery tag that the consumer holds; it receives the next message when that is removed.
        self._guarded: int | None = None
        self._delivered: deque[amqp.Message] = deque()
        self._publisher: amqp.Channel | None = None
        self._held: dict[int, None] = {}
        self._bound: dict[tuple[str, str], bool] = {}
        #: The current message as received: the yielded one is decompressed.
        self.raw: amqp.Message | None = None
        #: Number of inspected messages.
        self.seen = 0
        #: Whether all messages of the queue were inspected.
        self.complete = False

    def __iter__(self) -> Iterator[Message]:
        try:
            found = self._channel.queue_declare(self._queue, passive=True)
        except NotFound as error:
            raise TopologyError(f"The queue {self._queue!r} does not exist: run `{command('apply')}`.") from error
        end_with_channel(self._connection, self._channel)
        there, self.shared = found.message_count, bool(found.consumer_count)
        ran_empty = not there
        if there and self._is_delay_queue:
            # Consume one message at a time, so that the queue is not pruned as empty while this scan holds all.
            self._channel.basic_qos(0, 1, False)
            self._guard = self._channel.basic_consume(self._queue, callback=self._on_delivered)
        # Later messages are ignored: a task that is sent back may fail and return while the scan goes on.
        for _ in range(min(there, self._most)):
            raw = self._next()
            if raw is None:
                ran_empty = True
                break
            self.seen += 1
            self.raw = raw
            yield self._channel.message_to_python(raw)
        self.complete = there <= self._most
        if ran_empty and self._releases:
            self.synchronise()  # see `Capabilities.holds_expired`

    def _on_delivered(self, raw: amqp.Message) -> None:
        self._guarded = raw.delivery_tag
        self._on_taken(raw)

    def _on_taken(self, raw: amqp.Message) -> None:
        self._held[raw.delivery_tag] = None
        self._delivered.append(raw)

    def _next(self) -> amqp.Message | None:
        """Return the next message: from the consumer where it holds none, as its next is the oldest; else by a get."""
        if self._guard and self._guarded is None:
            deadline = time.monotonic() + _DELIVERY_TIMEOUT
            with suppress(TimeoutError):
                while not self._delivered and (left := deadline - time.monotonic()) > 0:
                    self._connection.drain_events(timeout=left)
        if self._delivered:
            return self._delivered.popleft()
        raw = self._channel.basic_get(self._queue)
        if raw is not None:
            self._held[raw.delivery_tag] = None
        return raw

    def move(self, message: Message, copy: amqp.Message, exchange: str, routing_key: str) -> None:
        """Publish ``copy`` with confirm, then ack ``message``.

        Raises `PublishError` when the broker has not confirmed the copy; the message then stays. Raises
        `ChannelEndedError` or `amqp.ConsumerCancelled` where the broker has taken the messages back, as after its
        ``consumer_timeout``; so does `remove`.
        """
        self._check_held()
        if self._publisher is None or not self._publisher.is_open:
            self._publisher = self._connection.channel()
            self._publisher.auto_decode = False
        route = Route(exchange, routing_key)
        try:
            publisher_on(self._publisher).send(copy, route)
        except ChannelError as error:
            raise refusal(route.where, error) from error
        except OutcomeUnknownError:
            self._close_publisher()
            raise
        self._ack(message)

    def bind(self, queue: str, exchange: str, key: str) -> bool:
        """Bind a queue once, if the user may; return whether the queue exists."""
        if (queue, key) not in self._bound:
            try:
                with self._connection.channel() as channel:
                    channel.queue_bind(queue, exchange, key)
                self._bound[queue, key] = True
            except NotFound:
                self._bound[queue, key] = False
            except AccessRefused:  # workers bind it when they start
                self._bound[queue, key] = inspect_queue(self._connection, queue) is not None
        return self._bound[queue, key]

    def remove(self, message: Message) -> None:
        """Ack ``message``, which removes it from the queue."""
        self._check_held()
        self._ack(message)

    def _check_held(self) -> None:
        """Read what the broker has sent: an error, if it took the messages back, which others may have by now."""
        with suppress(TimeoutError):
            while True:
                self._connection.drain_events(timeout=0)

    def _ack(self, message: Message) -> None:
        if message.delivery_tag == self._guarded:
            self._guarded = None
        self._channel.basic_ack(message.delivery_tag)
        del self._held[message.delivery_tag]

    def synchronise(self) -> None:
        """Wait until the broker has handled the acks so far, so that no removed message can return."""
        work_off(self._channel, self._queue, self._on_taken)

    def requeue(self) -> None:
        """Requeue all held messages to their places in the queue."""
        if self._guard:
            self._channel.basic_cancel(self._guard)
            self._guard = None
        patience = _NOT_ALONE if self.shared or self._is_delay_queue else _ALONE
        requeue(self._channel, self._queue, sorted(self._held), patience=patience)
        self._held.clear()

    def close(self) -> None:
        """Close the channels, which requeues messages that are still held, on quorum queues in any order."""
        if self._channel.is_open:  # else the connection has ended
            self._close_publisher()
            self._channel.close()

    def _close_publisher(self) -> None:
        if self._publisher is not None and self._publisher.is_open:
            self._publisher.close()
        self._publisher = None


def requeue(channel: Any, queue: str, delivery_tags: Iterable[int], *, patience: float = _NOT_ALONE) -> None:
    """Requeue messages to their places, in their order; wait for each burst 50 ms, and ``patience`` s in total."""
    held = list(delivery_tags)
    for start in range(0, len(held), _BURST):
        burst = held[start : start + _BURST]
        before = _ready(channel, queue)
        for delivery_tag in burst:
            channel.basic_reject(delivery_tag, requeue=True)
        began = time.monotonic()
        while _ready(channel, queue) < before + len(burst) and time.monotonic() < began + _BURST_TIMEOUT + patience:
            pass
        patience = max(0.0, patience - (time.monotonic() - began))


def work_off(channel: Any, queue: str, hold: Callable[[amqp.Message], object]) -> None:
    """Wait until a queue has handled the channel's commands so far, above all acks; ``hold`` is called for deliveries.

    RabbitMQ delays acks for a quorum queue beyond 32 unanswered ones, and drops them when the channel closes. A new
    consumer is a command that the queue answers after the first 32, when the others have been sent. It also makes the
    broker dead-letter messages that a ``basic.get`` found expired, which may otherwise take hours (``rabbit_fifo``).
    """
    channel.basic_qos(0, 1, False)
    channel.basic_cancel(channel.basic_consume(queue, callback=hold))


def _ready(channel: Any, queue: str) -> int:
    count: int = channel.queue_declare(queue, passive=True).message_count
    return count


@contextmanager
def scanning(
    connection: Connection, queue: str, most: int = SCAN_LIMIT, *, is_delay_queue: bool = False
) -> Iterator[Scan]:
    """Scan at most ``most`` messages of ``queue``; the end of the block requeues those not removed, in order.

    Bodies are not decoded. A message of a delay queue that expires meanwhile is dead-lettered at the end of the block
    at the latest. Raises `TopologyError` where the queue does not exist.
    """
    channel = connection.channel()
    channel.auto_decode = False
    releases = is_delay_queue and capabilities(connection).holds_expired
    scan = Scan(connection, channel, queue, most, is_delay_queue=is_delay_queue, releases=releases)
    try:
        try:
            yield scan
        finally:
            if channel.is_open:
                scan.requeue()
    finally:
        scan.close()
