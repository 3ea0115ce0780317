"""Publishing with publisher confirms: everything that this package publishes goes through `ConfirmingPublisher`.

What becomes of a message, and what its caller gets, as the argument of the callback of `publish` or raised by `send`:

| the broker | error |
|---|---|
| confirms it | none; `OutcomeUnknownError` where its leased queue may have expired before |
| returns it: no queue takes it | `UnroutableError` |
| refuses it (``basic.nack``): a queue is full | `NackedError` |
| was never asked: AMQP cannot carry it | `UnsendableError` |
| closes the channel | `send`: py-amqp's error; `refuse`: `RefusedError`, where the owner knows which message is meant |
| does not answer: an alarm, a lost peer | `send`: `OutcomeUnknownError` after its time-out; `publish` goes on waiting |
| ends the connection | `send`: py-amqp's error; `attach` publishes again what has no answer |
"""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import amqp
from amqp import spec
from kombu import Connection
from kombu.utils.encoding import str_to_bytes

from ..commands import command
from ..exceptions import NackedError, OutcomeUnknownError, PublishError, RefusedError, UnroutableError, UnsendableError
from ..names import MAX_NAME_BYTES
from .apply import declare_nowait, renew
from .objects import Objects
from .route import Route

logger = logging.getLogger(__name__)

#: Seconds to wait for a confirm where blocking is allowed: in operations, and in a worker that stops.
CONFIRM_TIMEOUT = 30.0

#: RabbitMQ's default maximum frame size, used until a connection has negotiated its own.
_FRAME_MAX = 131_072
#: Bytes around the properties in a content header frame, with a margin.
_FRAME_OVERHEAD = 64


def encoded_properties(message: amqp.Message, exchange: str, routing_key: str, frame_max: int) -> bytes:
    """Return the properties of a message. Raises `UnsendableError` if AMQP cannot carry them, or one of the names."""
    where = exchange or routing_key
    for name in (exchange, routing_key):
        size = len(name.encode("utf-8", "surrogatepass"))
        if size > MAX_NAME_BYTES:
            text = f"{where[:40]!r}... has {size} bytes and AMQP allows {MAX_NAME_BYTES}: no queue has such a name."
            raise UnsendableError(text)
    if isinstance(message.body, str):
        message.properties.setdefault("content_encoding", "utf-8")  # as py-amqp does
    try:
        properties: bytes = message._serialize_properties()
    except (struct.error, ValueError, TypeError, amqp.AMQPError) as error:
        raise UnsendableError(f"The headers of a message for {where!r} cannot be encoded: {error}.") from error
    if len(properties) + _FRAME_OVERHEAD >= frame_max:
        raise UnsendableError(f"A message for {where!r} has too large headers.")
    return properties


#: What a method needs, where it is always the same.
_PERMISSIONS = {
    "Basic.publish": "the permission *write*",
    "Exchange.bind": "the permissions *write* and *read*",
    "Queue.bind": "the permissions *write* and *read*",
}


def refusal(where: str, error: amqp.AMQPError) -> RefusedError:
    """Return the error of a message to ``where`` for which the broker closed the channel with ``error``."""
    text = f"The broker refused a message for {where!r}: {error.reply_text}."
    if "refused for user" in text:  # before RabbitMQ 4 the reply does not name the permission
        needed = _PERMISSIONS.get(error.method_name or "", "this permission")
        text += f" Give the broker's user {needed} with `rabbitmqctl set_permissions`."
    return RefusedError(text)


@dataclass
class _Pending:
    number: int
    message: amqp.Message
    route: Route
    done: Callable[[PublishError | None], None]
    declares: Callable[[], Objects] | None = None
    returned: bool = False
    sent_at: float = 0.0

    def is_about(self, message: amqp.Message, exchange: str, routing_key: str) -> bool:
        return (
            not self.returned
            and (self.route.exchange, self.route.routing_key) == (exchange, routing_key)
            and self.message.properties.get("correlation_id") == message.properties.get("correlation_id")
            and str_to_bytes(self.message.body) == str_to_bytes(message.body)
        )

    @property
    def error(self) -> PublishError | None:
        if self.returned:
            return UnroutableError(f"No queue takes messages for {self.route.where!r}: run `{command('apply')}`.")
        if self.route.leased and (time.monotonic() - self.sent_at) * 1000 > self.route.lease_ms:
            return OutcomeUnknownError(
                f"The confirm for {self.route.where!r} arrived when that queue may have expired."
            )
        return None


class ChannelEndedError(amqp.RecoverableConnectionError):
    """The broker closed a channel, and so this process the connection; see ``reply_code``."""


def end_with_channel(connection: Connection, channel: amqp.Channel) -> None:
    """End the connection with a `ChannelEndedError` when the broker closes this channel; py-amqp would reopen it."""

    def on_close(code: int, text: str, class_id: int, method_id: int) -> None:
        # Callbacks of a pool may swallow the error: the event loop notices the closed socket in any case.
        channel.is_open = False
        opened: Any = connection.connection
        opened.sock.shutdown(socket.SHUT_RDWR)
        raise ChannelEndedError(text, (class_id, method_id), reply_code=code)

    channel._callbacks[spec.Channel.Close] = on_close


def confirming_channel(connection: Connection) -> amqp.Channel:
    """Open a channel for a `ConfirmingPublisher`, with which the connection ends. Blocks."""
    channel: Any = connection.channel()
    channel.auto_decode = False  # a returned body is compared with the bytes that were published
    _select(channel)
    end_with_channel(connection, channel)
    return channel


def publisher_on(channel: amqp.Channel) -> ConfirmingPublisher:
    """Return the publisher of a channel; all publishes go through it, as the broker counts all of them. Blocks."""
    given: Any = channel
    made = getattr(given.basic_publish, "__self__", None)
    if not isinstance(made, ConfirmingPublisher):
        _select(given)
        made = ConfirmingPublisher(given)
        given.basic_publish = made.basic_publish
    return made


def _select(channel: Any) -> None:
    channel.confirm_select()
    channel._confirm_selected = True  # py-amqp resets it when it opens the channel again, after an error


class ConfirmingPublisher:
    """Publishes on a channel: `publish` with a callback for the confirm, without blocking; `send` waits for it.

    Use it in one thread at a time. ``done`` is called with None when the broker has confirmed, or with the error. It is
    not called when the connection is lost; `attach` continues with another one. While ``may_write`` returns False,
    publishes wait until `flush`.
    """

    def __init__(self, channel: amqp.Channel | None = None, may_write: Callable[[], bool] = lambda: True) -> None:
        self._may_write = may_write
        self._channel: Any = None
        #: The route of the next `basic_publish`.
        self._next: Route | None = None
        self._frame_max = _FRAME_MAX
        #: Number of requested publishes, and of those that are written on this channel.
        self._accepted = self._published = 0
        self._pending: dict[int, _Pending] = {}
        #: The functions whose objects were declared on this channel.
        self._declared: set[Callable[[], Objects]] = set()
        self._outbox: deque[_Pending] = deque()
        self._flushing = False
        #: Callbacks that wait for confirms, and the last publish that each of them waits for.
        self._barriers: deque[tuple[int, Callable[[], None]]] = deque()
        if channel is not None:
            self.attach(channel)

    def attach(self, channel: amqp.Channel) -> None:
        """Publish on a `confirming_channel` of a new connection, first all unconfirmed messages again."""
        self._channel = channel
        self._frame_max = channel.connection.frame_max
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)
        for each in self._pending.values():
            each.returned = False
        self._outbox.extendleft(reversed(self._pending.values()))
        self._pending.clear()
        self._declared.clear()
        self._published = 0
        self.flush()

    def publish(
        self,
        message: amqp.Message,
        route: Route,
        done: Callable[[PublishError | None], None],
        *,
        declares: Callable[[], Objects] | None = None,
    ) -> None:
        """Publish ``message`` along ``route``, whose objects exist; declare those that ``declares`` returns first.

        They are declared once per channel, without waiting for the reply; a refusal closes the channel.
        """
        self._accepted += 1
        self._outbox.append(_Pending(self._accepted, message, route, done, declares))
        self.flush()

    def send(self, message: amqp.Message, route: Route, timeout: float | None = None) -> None:
        """Publish, and wait for the confirm: up to ``timeout`` seconds, by default `CONFIRM_TIMEOUT`.

        Blocks, so do not use it in the worker's consumer loop. Raises the `PublishError` of the message. A late confirm
        counts for no other message; but after an `OutcomeUnknownError` the broker may return this message late, so
        publish a message with the same body on another channel.
        """
        self._heed_reopening()
        found: list[PublishError | None] = []
        self.publish(message, route, found.append)
        limit = timeout or CONFIRM_TIMEOUT
        deadline = time.monotonic() + limit
        try:
            while not found:
                self._read(deadline)
        except TimeoutError as error:
            raise OutcomeUnknownError(f"No confirm for {route.where!r} in {limit:g} s.") from error
        if found[0] is not None:
            raise found[0]

    def wait(self, timeout: float) -> None:
        """Wait until each publish has its answer. Raises `TimeoutError` where none arrives for ``timeout`` seconds."""
        while waiting := self.waiting:
            deadline = time.monotonic() + timeout
            while self.waiting >= waiting:
                self._read(deadline)

    def _read(self, deadline: float) -> None:
        opened = self._channel.connection
        if opened is None:
            raise amqp.RecoverableConnectionError("The connection has ended.")
        opened.drain_events(timeout=max(0.001, deadline - time.monotonic()))

    def _heed_reopening(self) -> None:
        """Count from the start where py-amqp has opened the channel again, after an error that has closed it."""
        if not self._channel._confirm_selected:
            self._pending.clear()
            self._published = 0
            _select(self._channel)

    @contextmanager
    def along(self, route: Route) -> Iterator[None]:
        """Let `basic_publish` in the block, of kombu, send its message along ``route``, with the errors of `send`."""
        self._next = route
        try:
            yield
        finally:
            self._next = None

    def basic_publish(
        self, msg: amqp.Message, exchange: str = "", routing_key: str = "", mandatory: bool = False, **_: Any
    ) -> None:
        """Publish in the place of the channel's method: without waiting for a confirm, unless there is a route."""
        if self._next is not None:
            self.send(msg, self._next)
        else:
            self._heed_reopening()
            self.publish(msg, Route(exchange, routing_key, mandatory=mandatory), lambda _error: None)

    def flush(self) -> None:
        """Write waiting publishes while ``may_write`` allows it."""
        # py-amqp reads events while it publishes, whose callbacks may publish: one loop, no recursion.
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._outbox and self._may_write():
                self._write(self._outbox.popleft())
        finally:
            self._flushing = False

    def _write(self, pending: _Pending) -> None:
        route, message = pending.route, pending.message
        try:
            properties = encoded_properties(message, route.exchange, route.routing_key, self._frame_max)
        except UnsendableError as error:
            pending.done(error)
            self._call_back()
            return
        self._published += 1
        self._pending[self._published] = pending
        pending.sent_at = time.monotonic()
        if pending.declares is not None and pending.declares not in self._declared:
            for each in pending.declares():
                declare_nowait(self._channel, each)
            self._declared.add(pending.declares)
        for queue in route.leased:
            renew(self._channel, queue)
        message._serialize_properties = lambda: properties  # py-amqp would encode them once more
        try:
            # The instance's method is this publisher's, or waits for the confirm where the app has set it so.
            publish = type(self._channel).basic_publish
            publish(self._channel, message, route.exchange, route.routing_key, route.mandatory)
        finally:
            del message._serialize_properties

    def refuse(self, error: ChannelEndedError) -> None:
        """Call back with a `RefusedError` for all written, unconfirmed publishes."""
        refused, self._pending = self._pending, {}
        for pending in refused.values():
            pending.done(refusal(pending.route.where, error))
        self._call_back()

    def fits(self, message: amqp.Message) -> bool:
        """Return whether the properties of ``message`` fit into one AMQP frame, as AMQP requires."""
        try:
            encoded_properties(message, "", "", self._frame_max)
        except UnsendableError:
            return False
        return True

    @property
    def waiting(self) -> int:
        """The number of publishes without a confirm so far, written or not."""
        return self.written + len(self._outbox)

    @property
    def written(self) -> int:
        """The number of publishes that are written on this connection and not confirmed yet."""
        return len(self._pending)

    def after_pending(self, callback: Callable[[], None]) -> None:
        """Call back as soon as each publish until now has its confirm or error; at once where all have."""
        self._barriers.append((self._accepted, callback))
        self._call_back()

    def _call_back(self) -> None:
        while self._barriers:
            last, callback = self._barriers[0]
            oldest = next(iter(self._pending.values()), None) or next(iter(self._outbox), None)
            if oldest is not None and oldest.number <= last:
                return
            self._barriers.popleft()
            callback()

    def _on_return(self, _error: Exception, exchange: str, routing_key: str, message: amqp.Message) -> None:
        # The broker sends the return before the ack of the same message.
        pending = list(self._pending.values())
        about = [each for each in pending if each.is_about(message, exchange, routing_key)]
        # py-amqp may have decoded the body: the only message is meant in any case.
        for each in about[:1] or pending[: len(pending) == 1]:
            each.returned = True

    def _on_ack(self, delivery_tag: int, multiple: bool) -> None:
        for pending in self._settled(delivery_tag, multiple):
            pending.done(pending.error)
        self._call_back()

    def _on_nack(self, delivery_tag: int, multiple: bool) -> None:
        for pending in self._settled(delivery_tag, multiple):
            pending.done(NackedError(f"The broker refused a message for {pending.route.where!r}."))
        self._call_back()

    def _settled(self, delivery_tag: int, multiple: bool) -> list[_Pending]:
        tags = [tag for tag in self._pending if tag <= delivery_tag] if multiple else [delivery_tag]
        return [self._pending.pop(tag) for tag in tags if tag in self._pending]
