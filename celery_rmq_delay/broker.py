"""AMQP at its edge: what the broker can do, and publishing that is not done before the broker says so."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import amqp
from amqp.exceptions import MessageNacked

from .exceptions import NackedError, OutcomeUnknownError, PublishError, UnroutableError

if TYPE_CHECKING:
    from kombu import Connection
    from kombu.message import Message as ReceivedMessage

logger = logging.getLogger(__name__)

#: Seconds that a blocking publish waits for its confirm.
CONFIRM_TIMEOUT = 30.0

#: Bytes around the properties in a content header frame, and some more.
_FRAME_OVERHEAD = 64

Version = tuple[int, int, int]


@dataclass(frozen=True)
class Capabilities:
    """What differs between the versions of RabbitMQ."""

    version: Version

    @property
    def tells_death_reason(self) -> bool:
        """Dead-lettered messages carry ``x-last-death-reason``."""
        return self.version >= (3, 13, 0)

    @property
    def keeps_delivery_count(self) -> bool:
        """Quorum queues keep ``x-delivery-count`` when they dead-letter; measured on 4.0.5 and 4.3.6, not on 3.10.8."""
        return self.version >= (4, 0, 0)

    @property
    def flags_returned(self) -> bool:
        """Classic queues flag what comes back from a delay queue as redelivered: measured on 4.3.6, not on 4.0.5.

        What was published into the delay queue, instead of rejected, is not flagged on any version.
        """
        return self.version >= (4, 1, 0)


def capabilities(connection: Connection) -> Capabilities:
    """Return what the connected broker can do."""
    return Capabilities(broker_version(connection))


def broker_version(connection: Connection) -> Version:
    """Return the version the broker says it has; (0, 0, 0) where it says none."""
    properties = connection.connection.server_properties
    text = properties.get("version", "")
    text = text.decode() if isinstance(text, bytes) else str(text)
    parts = [int("".join(filter(str.isdecimal, part)) or 0) for part in text.split("-")[0].split(".")[:3]]
    parts += [0] * (3 - len(parts))
    return parts[0], parts[1], parts[2]


class _Copy(amqp.Message):  # type: ignore[misc]  # its stubs have no type for it
    """A message whose properties are complete, and are serialized once: to see whether they fit, and to be sent."""

    _serialized: bytes | None = None

    def _serialize_properties(self) -> bytes:
        if self._serialized is None:
            self._serialized = super()._serialize_properties()
        return self._serialized


def copy_of(message: ReceivedMessage, headers: dict[str, Any]) -> amqp.Message:
    """Return a message with the body bytes and properties of a received one, and the given headers."""
    properties = {
        name: value for name, value in message.properties.items() if name not in ("application_headers", "expiration")
    }
    return _Copy(
        message.body,
        **{
            "content_type": message.content_type,
            "content_encoding": message.content_encoding,
            **properties,
            "delivery_mode": 2,
            "application_headers": headers,
        },
    )


def publish_confirmed(channel: amqp.Channel, message: amqp.Message, exchange: str, routing_key: str) -> None:
    """Publish as mandatory and wait for the confirm. Blocks: not for the worker's consumer loop.

    Raises `UnroutableError`, `NackedError`, or `OutcomeUnknownError` after `CONFIRM_TIMEOUT` seconds.
    """
    with mandatory(channel):
        try:
            channel.basic_publish_confirm(
                message, exchange=exchange, routing_key=routing_key, mandatory=True, confirm_timeout=CONFIRM_TIMEOUT
            )
        except MessageNacked as error:
            raise NackedError(f"The broker refused a message for {exchange or routing_key!r}.") from error
        except TimeoutError as error:
            raise OutcomeUnknownError(
                f"No confirm for {exchange or routing_key!r} in {CONFIRM_TIMEOUT:g} s."
            ) from error


@contextmanager
def mandatory(channel: amqp.Channel) -> Iterator[None]:
    """Raise `UnroutableError` at the end of the block when the broker returned a message published in it."""
    returned: list[str] = []

    def on_return(_error: Exception, exchange: str, routing_key: str, _message: amqp.Message) -> None:
        returned.append(f"exchange {exchange!r}, routing key {routing_key!r}")

    channel.events["basic_return"].add(on_return)
    try:
        yield
    finally:
        channel.events["basic_return"].discard(on_return)
    if returned:
        raise UnroutableError(f"No queue takes messages of {returned[0]}: run `celery -A proj rmq-delay apply`.")


@dataclass
class _Pending:
    message: amqp.Message
    routing_key: str
    done: Callable[[PublishError | None], None]
    returned: bool = False

    def is_about(self, message: amqp.Message, routing_key: str) -> bool:
        """Return whether ``message``, returned by the broker, is this one."""
        return (
            not self.returned
            and self.routing_key == routing_key
            and self.message.properties.get("correlation_id") == message.properties.get("correlation_id")
            and _bytes(self.message.body) == _bytes(message.body)
        )


class ConfirmingPublisher:
    """Publishes to queues on the worker's own connection without ever waiting: the confirm calls back.

    Everything happens in the thread of the event loop. ``done`` gets None when the broker has taken responsibility, or
    the error. A lost connection drops what is pending: the originals are unacked, so the broker delivers them again.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._channel = connection.channel()
        self._channel.confirm_select()
        self._channel.events["basic_ack"].add(self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        self._published = 0
        self._pending: dict[int, _Pending] = {}
        self._outbox: deque[_Pending] = deque()
        self._flushing = False
        self._idle: list[Callable[[], None]] = []

    def publish(self, message: amqp.Message, queue: str, done: Callable[[PublishError | None], None]) -> None:
        """Publish ``message`` to ``queue`` through the default exchange."""
        self._outbox.append(_Pending(message, queue, done))
        self._flush()

    def _flush(self) -> None:
        # py-amqp reads events while it publishes, and those may publish: one loop, no recursion.
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._outbox:
                pending = self._outbox.popleft()
                if not self.fits(pending.message):
                    pending.done(PublishError(f"A message for {pending.routing_key!r} has too large headers."))
                    continue
                self._published += 1
                self._pending[self._published] = pending
                self._channel.basic_publish(
                    pending.message, exchange="", routing_key=pending.routing_key, mandatory=True
                )
        finally:
            self._flushing = False

    def fits(self, message: amqp.Message) -> bool:
        """Return whether the properties of ``message`` fit into one AMQP frame, as they have to."""
        limit: int = self._connection.connection.frame_max
        return len(message._serialize_properties()) + _FRAME_OVERHEAD < limit

    @property
    def waiting(self) -> int:
        """How many publishes have no answer yet."""
        return len(self._pending) + len(self._outbox)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call back as soon as no publish waits for its answer; at once when none does."""
        self._idle.append(callback)
        self._call_idle()

    def _call_idle(self) -> None:
        while self._idle and not self.waiting:
            self._idle.pop(0)()

    def drain(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds between answers until all have come. Blocks: for the worker's shutdown."""
        while self.waiting:
            try:
                self._connection.drain_events(timeout=timeout)
            except (TimeoutError, OSError):  # noqa: PERF203 - each turn waits for the broker
                logger.warning(
                    "%d publishes without a confirm at shutdown: their tasks are delivered again", self.waiting
                )
                return

    def _on_return(self, _error: Exception, _exchange: str, routing_key: str, message: amqp.Message) -> None:
        # The broker sends the return before the ack of the same message.
        for pending in self._pending.values():
            if pending.is_about(message, routing_key):
                pending.returned = True
                return

    def _on_ack(self, delivery_tag: int, multiple: bool) -> None:
        for pending in self._settled(delivery_tag, multiple):
            if pending.returned:
                pending.done(UnroutableError(f"The queue {pending.routing_key!r} does not exist: apply the topology."))
            else:
                pending.done(None)
        self._call_idle()

    def _on_nack(self, delivery_tag: int, multiple: bool) -> None:
        for pending in self._settled(delivery_tag, multiple):
            pending.done(NackedError(f"The broker refused a message for the queue {pending.routing_key!r}."))
        self._call_idle()

    def _settled(self, delivery_tag: int, multiple: bool) -> list[_Pending]:
        tags = [tag for tag in self._pending if tag <= delivery_tag] if multiple else [delivery_tag]
        return [self._pending.pop(tag) for tag in tags if tag in self._pending]


def _bytes(body: str | bytes) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body)
