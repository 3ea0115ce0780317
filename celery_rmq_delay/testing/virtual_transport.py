"""Kombu's transport to a `VirtualBroker`: the API of AMQP without a network."""

from __future__ import annotations

import itertools
import uuid
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import amqp
from amqp import spec
from amqp.exceptions import ChannelError, RecoverableConnectionError
from amqp.protocol import queue_declare_ok_t
from kombu.transport import base, pyamqp

from ..amqp.objects import Binding, arguments
from .virtual_broker import VERSION, Consumer, Stored, VirtualBroker, VirtualQueue

#: The name of this transport for kombu.
NAME = f"{__name__}:Transport"

#: Brokers by the host name of a URL.
BROKERS: WeakValueDictionary[str, VirtualBroker] = WeakValueDictionary()


def _binding(source: str, destination: str, to: Any, key: str, declared: Any) -> Binding:
    return Binding(source, destination, to, key or "", arguments(declared or {}))


class _Channel(base.StdChannel):  # type: ignore[misc]  # comes without types
    """The methods of `amqp.Channel` that Celery, kombu and this package call. Every reply is immediate."""

    Message = pyamqp.Message
    prepare_message = pyamqp.Channel.prepare_message
    prepare_queue_arguments = pyamqp.Channel.prepare_queue_arguments
    message_to_python = pyamqp.Channel.message_to_python

    def __init__(self, connection: _Connection) -> None:
        self.connection = connection
        self.broker = connection.broker
        self.channel_id = next(connection.numbers)
        self.is_open = True
        self.auto_decode = True
        self.events: defaultdict[str, set[Callable[..., object]]] = defaultdict(set)
        self._unsettled: dict[int, tuple[VirtualQueue, Stored]] = {}
        self._tags = itertools.count(1)
        self._published = itertools.count(1)
        self._confirms = False
        self._callbacks: dict[Any, Callable[..., object]] = {}  # py-amqp's, for connection methods

    def close(self) -> None:
        """Requeue unacknowledged messages."""
        self.is_open = False
        for queue in self.broker.queues.values():
            queue.consumers = [each for each in queue.consumers if not each.tag.startswith(self._prefix)]
        for tag in sorted(self._unsettled, reverse=True):
            queue, stored = self._unsettled.pop(tag)
            self.broker.requeue(queue, stored, failed=True)

    collect = close

    @property
    def _prefix(self) -> str:
        return f"{id(self)}:"

    def flow(self, active: bool) -> None:
        """Do nothing: this package calls it to wait for the broker's reply."""

    def _checked(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if not self.is_open:
            raise RecoverableConnectionError("channel disconnected")
        try:
            return act(*args, **options)
        except ChannelError:  # closes the channel it happens on
            self.close()
            raise

    def exchange_declare(
        self,
        exchange: str,
        type: str = "direct",  # noqa: A002 - as amqp has it
        passive: bool = False,
        arguments: Any = None,
        **_: Any,
    ) -> None:
        self._checked(self.broker.exchanges.declare, exchange, type, arguments, passive=passive)

    def exchange_delete(self, exchange: str, **_: Any) -> None:
        self.broker.exchanges.delete(exchange)

    def queue_declare(self, queue: str = "", passive: bool = False, arguments: Any = None, **_: Any) -> Any:
        queue = queue or f"amq.gen-{uuid.uuid4().hex}"
        if passive:
            found = self._checked(self.broker.queue, queue)
        else:
            found = self._checked(self.broker.declare_queue, queue, arguments)
        return queue_declare_ok_t(queue, len(found.ready), len(found.consumers))

    def queue_bind(
        self, queue: str, exchange: str = "", routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        self._checked(self.broker.queue, queue)
        if exchange:
            self._checked(self.broker.exchanges.bind, _binding(exchange, queue, "queue", routing_key, arguments))

    def queue_unbind(self, queue: str, exchange: str, routing_key: str = "", arguments: Any = None, **_: Any) -> None:
        self.broker.exchanges.unbind(_binding(exchange, queue, "queue", routing_key, arguments))

    def exchange_bind(
        self, destination: str, source: str = "", routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        binding = _binding(source, destination, "exchange", routing_key, arguments)
        self._checked(self.broker.exchanges.bind, binding)

    def exchange_unbind(
        self, destination: str, source: str = "", routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        self.broker.exchanges.unbind(_binding(source, destination, "exchange", routing_key, arguments))

    def queue_delete(self, queue: str = "", **_: Any) -> int:
        return self.broker.delete_queue(queue)

    def queue_purge(self, queue: str = "", **_: Any) -> int:
        found = self._checked(self.broker.queue, queue)
        purged, found.ready = len(found.ready), []
        return purged

    def confirm_select(self, **_: Any) -> None:
        self._confirms = True

    def basic_publish(
        self, msg: amqp.Message, exchange: str = "", routing_key: str = "", mandatory: bool = False, **_: Any
    ) -> None:
        taken = self._checked(self.broker.publish, msg, exchange, routing_key)
        if mandatory and not taken:
            for handler in list(self.events["basic_return"]):
                handler(ChannelError("NO_ROUTE"), exchange, routing_key, msg)
        if self._confirms:
            tag = next(self._published)
            for handler in list(self.events["basic_ack"]):
                handler(tag, False)

    basic_publish_confirm = basic_publish

    def basic_qos(self, *_: Any, **__: Any) -> None:
        """Do nothing: messages are delivered one by one."""

    def basic_consume(
        self, queue: str = "", consumer_tag: str = "", no_ack: bool = False, callback: Any = None, **_: Any
    ) -> str:
        tag = consumer_tag or uuid.uuid4().hex

        def deliver(source: VirtualQueue, stored: Stored) -> None:
            callback(self._delivery(source, stored, tag, no_ack=no_ack))

        found = self._checked(self.broker.queue, queue)
        found.consumers.append(Consumer(f"{self._prefix}{tag}", self.connection, deliver))
        return tag

    def basic_cancel(self, consumer_tag: str, **_: Any) -> None:
        for queue in self.broker.queues.values():
            queue.consumers = [each for each in queue.consumers if each.tag != f"{self._prefix}{consumer_tag}"]

    def _delivery(self, queue: VirtualQueue, stored: Stored, tag: str, *, no_ack: bool) -> amqp.Message:
        number = next(self._tags)
        if not no_ack:
            self._unsettled[number] = queue, stored
        message = amqp.Message(stored.message.body, **stored.message.properties)
        headers = message.properties["application_headers"] = dict(stored.headers)
        if queue.arguments.get("x-queue-type") == "quorum" and stored.redelivered:
            headers |= {"x-delivery-count": stored.failed, "x-acquired-count": stored.acquired - 1}
        message.channel = self
        message.delivery_info = {
            "consumer_tag": tag,
            "delivery_tag": number,
            "redelivered": stored.redelivered,
            "exchange": stored.exchange,
            "routing_key": stored.key,
        }
        return message

    def basic_get(self, queue: str = "", no_ack: bool = False, **_: Any) -> amqp.Message | None:
        found = self._checked(self.broker.queue, queue)
        return self._delivery(found, found.ready.pop(0), "", no_ack=no_ack) if found.ready else None

    def basic_ack(self, delivery_tag: int, multiple: bool = False, **_: Any) -> None:
        for tag in self._tags_of(delivery_tag, multiple=multiple):
            del self._unsettled[tag]

    def basic_reject(self, delivery_tag: int, requeue: bool = False, **_: Any) -> None:
        for tag in self._tags_of(delivery_tag, multiple=False):
            queue, stored = self._unsettled.pop(tag)
            if requeue:
                self.broker.requeue(queue, stored, failed=True)
            else:
                self.broker.reject(queue, stored)

    def _tags_of(self, delivery_tag: int, *, multiple: bool) -> list[int]:
        return [tag for tag in self._unsettled if tag == delivery_tag or (multiple and tag < delivery_tag)]

    def send_method(self, method: Any, _format: str, arguments: tuple[Any, ...]) -> None:
        """Handle the methods that this package sends directly, see `amqp.apply.renew` and `nack_log_error`."""
        if method == spec.Queue.Declare:
            self.broker.declare_queue(arguments[1], arguments[-1])
        elif method == spec.Basic.Nack:
            for tag in self._tags_of(arguments[0], multiple=False):
                self.broker.requeue(*self._unsettled.pop(tag), failed=False)
        else:
            raise NotImplementedError(f"the AMQP method {method}")


class _Connection:
    """Replaces `amqp.Connection`."""

    frame_max = 131072
    on_blocked = None
    server_properties = {"product": "RabbitMQ", "version": VERSION}  # noqa: RUF012 - as amqp has it

    def __init__(self, broker: VirtualBroker, client: Any) -> None:
        self.broker, self.client = broker, client
        self.numbers = itertools.count(1)
        self.connected = True
        self.channels: list[_Channel] = []

    def channel(self) -> _Channel:
        self.channels.append(_Channel(self))
        return self.channels[-1]

    def drain_events(self, timeout: float | None = None) -> None:
        """Deliver one message to a consumer of this connection. Raises `TimeoutError` at once if none is ready."""
        if not self.broker.deliver_next(self):
            raise TimeoutError(f"no message is ready (timeout {timeout} s)")

    def close(self) -> None:
        self.connected = False
        for channel in self.channels:
            if channel.is_open:
                channel.close()

    collect = close


class Transport(pyamqp.Transport):
    """Leads to the `VirtualBroker` that the URL's host names."""

    driver_name = "virtual"
    implements = base.Transport.implements

    def establish_connection(self) -> Any:
        """Return an open connection."""
        return _Connection(BROKERS[self.client.hostname], self.client)

    def qos_semantics_matches_spec(self, connection: object) -> bool:
        """Return False: a prefetch count is one per consumer, as in RabbitMQ 3.3 to 3.13."""
        return False
