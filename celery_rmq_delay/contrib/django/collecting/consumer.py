"""The collector's connection to the broker: one channel to consume, one to count the queues."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from struct import unpack_from
from typing import TYPE_CHECKING, Any

import amqp
import kombu
from amqp import serialization, spec

from ....amqp.apply import ready_counts
from ....amqp.connections import assembling
from ....commands import command
from ....events.queue import declare_events
from ....exceptions import TopologyError

if TYPE_CHECKING:
    from ....app.state import AppState

logger = logging.getLogger(__name__)

#: Seconds of the AMQP heartbeat where the app's settings have none.
HEARTBEAT = 60
#: Errors of a connection that is lost or cannot be opened.
CONNECTION_ERRORS = (OSError, amqp.AMQPError)
_DELIVER = bytes((0, spec.Basic.Deliver[0], 0, spec.Basic.Deliver[1]))
#: Class id, weight and body size stand before the properties.
_PROPERTIES_AT = 12


class Delivery:
    """One message and its route, as bytes: decoding properties while a frame is read takes time, and can fail."""

    __slots__ = ("_header", "_method", "_tag_end", "body", "consumer_tag", "delivery_tag")

    def __init__(self, method: bytes, header: bytes, body: bytes) -> None:
        self._method, self._header, self.body = method, header, body
        self._tag_end = 5 + method[4]
        self.consumer_tag = method[5 : self._tag_end].decode()
        (self.delivery_tag,) = unpack_from(">Q", method, self._tag_end)

    @property
    def properties(self) -> bytes:
        """The properties with the headers, as AMQP encodes them."""
        return self._header[_PROPERTIES_AT:]

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self.body) + len(self._header)

    def message(self) -> amqp.Message:
        """Return the message, decoded except its body. Raises the errors of py-amqp's decoding."""
        message = amqp.Message(self.body)
        message.inbound_header(self._header)
        (_redelivered, exchange, routing_key), _ = serialization.loads("bss", self._method, self._tag_end + 8)
        message.delivery_info = {"exchange": exchange, "routing_key": routing_key, "delivery_tag": self.delivery_tag}
        message.properties.setdefault("application_headers", {})
        return message


class Consumer:
    """Consumes ``queues``; ``received`` holds the deliveries as (queue, delivery)."""

    def __init__(self, delay: AppState, queues: Sequence[str], prefetch: int) -> None:
        self._delay, self._prefetch = delay, prefetch
        self._tags = {f"rmq-delay-{number}": queue for number, queue in enumerate(queues)}
        self._connection: kombu.Connection | None = None
        self._channel: Any = None
        self._consumed: set[str] = set()
        self._missing: set[str] = set()
        self._next_heartbeat = 0.0
        self.received: deque[tuple[str, Delivery]] = deque()
        #: The bytes of the deliveries in ``received``.
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

    def count(self) -> dict[str, int]:
        """Return the ready messages of each queue; declare the events queue if permitted, consume queues that exist."""
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
            hint = f"run `{command('apply', self._delay.app)}`, or start a worker"
            logger.warning("Missing on the broker: %s. It is consumed once it exists: %s", ", ".join(missing), hint)
        self._missing = missing
        return {queue: count or 0 for queue, count in counts.items()}

    def _take(self, delivery: Delivery) -> None:
        self.received.append((self._tags[delivery.consumer_tag], delivery))
        self.size += delivery.size

    def take(self, most: int, size: int) -> list[tuple[str, Delivery]]:
        """Remove messages from ``received``: up to ``most``, until they have ``size`` bytes, and at least one."""
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
        """Receive until ``received`` has ``most`` messages, or ``timeout`` seconds are over."""
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
        """Read nothing for ``seconds``; heartbeats are still sent."""
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


def frame_handler(take: Callable[[Delivery], object]) -> Callable[..., Callable[[Any], bool]]:
    """Return a ``frame_handler`` for `amqp.Connection` that passes all deliveries to ``take``."""

    def make(connection: Any, callback: Any) -> Callable[[Any], bool]:
        def receive(_channel: int, found: _Incoming) -> None:
            take(Delivery(bytes(found.method), bytes(found.header), b"".join(found.chunks)))

        return assembling(connection, callback, _begin, receive)

    return make


def _begin(method: bytes) -> _Incoming | None:
    return _Incoming(method) if method[:4] == _DELIVER else None


class _Incoming:
    """A message that is being received."""

    __slots__ = ("chunks", "header", "method", "missing", "ready")

    def __init__(self, method: bytes) -> None:
        self.method, self.header, self.chunks = method, b"", list[bytes]()
        self.missing, self.ready = 0, False

    def inbound_header(self, buf: bytes) -> None:
        self.header = buf
        (self.missing,) = unpack_from(">Q", buf, 4)
        self.ready = not self.missing

    def inbound_body(self, buf: bytes) -> None:
        self.chunks.append(buf)
        self.missing -= len(buf)
        self.ready = self.missing <= 0
