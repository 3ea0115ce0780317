"""The collector's side of the broker: one connection, one channel that consumes, one to look at the queues."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import amqp
import kombu

from ....amqp.apply import ready_counts
from ....events.queue import declare_events
from ....exceptions import TopologyError
from .deliveries import Delivery, frame_handler

if TYPE_CHECKING:
    from ....app.state import AppState

logger = logging.getLogger(__name__)

#: Seconds between two signs of life where the settings of the app say nothing.
HEARTBEAT = 60
#: What a connection that is lost, or cannot be had, raises.
CONNECTION_ERRORS = (OSError, amqp.AMQPError)


class Consumer:
    """What the broker delivers from ``queues``, in ``received``, as (queue, delivery)."""

    def __init__(self, delay: AppState, queues: Sequence[str], prefetch: int) -> None:
        self._delay, self._prefetch = delay, prefetch
        self._tags = {f"rmq-delay-{number}": queue for number, queue in enumerate(queues)}
        self._connection: kombu.Connection | None = None
        self._channel: Any = None
        self._consumed: set[str] = set()
        self._missing: set[str] = set()
        self._next_heartbeat = 0.0
        self.received: deque[tuple[str, Delivery]] = deque()
        #: The bytes of what is in ``received``.
        self.size = 0

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Consume for the length of the block. Raises one of `CONNECTION_ERRORS`."""
        app = self._delay.app
        self.received.clear()
        self.size = 0
        self._consumed.clear()
        info = app.connection_for_read().info()
        options = {**(info.get("transport_options") or {}), "frame_handler": frame_handler(self._take)}
        heartbeat = info.get("heartbeat") or app.conf.broker_heartbeat or HEARTBEAT
        connection = kombu.Connection(**{**info, "transport_options": options, "heartbeat": heartbeat})
        try:
            connection.connect()
            self._connection = connection
            self._channel = connection.channel()
            self._channel.basic_qos(0, self._prefetch, False)
            yield
            self._channel.close()
        finally:
            self._connection = self._channel = None
            connection.collect()

    def look(self) -> dict[str, int]:
        """Return how many messages lie in the queues, and consume those that have come into being.

        The queue of events is declared where settings allow that; the exhausted queue is the ladders'.
        """
        assert self._connection is not None, "not connected"  # noqa: S101 - for mypy
        names, events = list(self._tags.values()), self._delay.settings.names.events
        counts = ready_counts(self._connection, names)
        if counts[events] is None:
            with suppress(TopologyError):
                declare_events(self._connection, self._delay)
                counts[events] = 0
        for tag, queue in self._tags.items():
            if counts[queue] is not None and queue not in self._consumed:
                self._channel.basic_consume(queue, consumer_tag=tag)
                self._consumed.add(queue)
        missing = {queue for queue in names if counts[queue] is None}
        if missing - self._missing:
            hint = "run `celery -A proj rmq-delay apply`, or start a worker"
            logger.warning("Missing on the broker: %s. It is consumed when it is there: %s", ", ".join(missing), hint)
        self._missing = missing
        return {queue: count or 0 for queue, count in counts.items()}

    def _take(self, delivery: Delivery) -> None:
        self.received.append((self._tags[delivery.consumer_tag], delivery))
        self.size += delivery.size

    def take(self, most: int, size: int) -> list[tuple[str, Delivery]]:
        """Take up to ``most`` messages out of ``received``, at least one, of ``size`` bytes or a message more."""
        taken: list[tuple[str, Delivery]] = []
        until = self.size - size
        while self.received and len(taken) < most and (self.size > until or not taken):
            taken.append(self.received.popleft())
            self.size -= taken[-1][1].size
        return taken

    @property
    def _amqp(self) -> Any:
        assert self._connection is not None, "not connected"  # noqa: S101 - for mypy
        return self._connection.connection

    def receive(self, most: int, timeout: float) -> None:
        """Take in what arrives, up to ``most`` in all; wait ``timeout`` seconds at most for each."""
        connection = self._amqp
        until = time.monotonic() + timeout
        try:
            with connection.transport.having_timeout(timeout):
                while len(self.received) < most and time.monotonic() < until:
                    connection.on_inbound_frame(connection.transport.read_frame())
        except TimeoutError:
            pass
        self._beat(is_reading=True)

    def pause(self, seconds: float) -> None:
        """Read nothing for so long; the broker still hears from us."""
        time.sleep(seconds)
        self._beat(is_reading=False)

    def _beat(self, *, is_reading: bool) -> None:
        connection, now = self._amqp, time.monotonic()
        if not connection.heartbeat or now < self._next_heartbeat:
            return
        self._next_heartbeat = now + connection.heartbeat / 4
        if is_reading:
            connection.heartbeat_tick()
        else:
            connection.last_heartbeat_received = now
            connection.send_heartbeat()

    def ack(self, delivery_tag: int) -> None:
        """Ack everything up to a delivery."""
        self._channel.basic_ack(delivery_tag, multiple=True)
