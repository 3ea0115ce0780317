"""The topologies of exact delays besides `levels`: each has a use for which it is the better one."""

from __future__ import annotations

import re
from dataclasses import replace

from amqp.exceptions import AccessRefused, AMQPError, NotFound
from kombu import Connection

from ...amqp import apply
from ...amqp.connections import another
from ...amqp.objects import Binding, Exchange, Objects, Queue, arguments
from ...amqp.route import Route
from ...commands import command
from ...durations import MAX_TTL_MS, format_ms
from ...exceptions import TopologyError
from ...names import limited
from ..common import managed_queue_arguments, safe_dead_lettering
from .base import Options, Topology, arrival, arrival_objects, arrivals, due_headers, units

#: How much longer than its messages a queue lives, in milliseconds. Each publish declares the queue, which renews the
#: lease, and its confirm has to arrive within half of this time.
LEASE_MS = 60_000
#: The number of significant bits of delays, which limits the number of queues of a destination.
_BITS = 7


class Hold(Topology):
    """A queue for each (delay, destination), which the broker deletes when it was unused for a while.

    One hop, and no message waits behind one with a longer delay. Only classic queues: declaring a quorum queue again
    does not renew its lease (``x-expires``). A delay of up to 128 units is exact to the unit. A longer one is rounded
    up by less than 1/64 of it.
    """

    name = "hold"

    def __init__(self, options: Options) -> None:
        self._options = options
        self.unit_ms = options.unit_ms
        self._arrivals: dict[str, Objects] = {}
        longest = (MAX_TTL_MS - LEASE_MS) // options.unit_ms
        self.max_ms = (longest >> longest.bit_length() - _BITS << longest.bit_length() - _BITS) * options.unit_ms

    def frame(self) -> Objects:
        """Return the exchange that the queues share."""
        return arrival_objects(self._options)

    def arrival(self, queue: str) -> Objects:
        """Return the exchange, and its binding of ``queue``."""
        return self._arrivals.setdefault(queue, arrival(self._options, queue))

    def route(self, delay_ms: int, queue: str) -> Route:
        """Return the route through the queue of this delay and destination."""
        delay = bucket(units(delay_ms, self.unit_ms)) * self.unit_ms
        declared = {
            "x-queue-type": "classic",
            "x-message-ttl": delay,
            "x-expires": delay + LEASE_MS,
            "x-dead-letter-exchange": arrivals(self._options.names),
            "x-dead-letter-routing-key": queue,
        }
        held = Queue(self.queue(delay, queue), arguments(declared))
        return Route(
            exchange="",
            routing_key=held.name,
            delay_ms=delay,
            objects=self.arrival(queue),
            key=(self.name, queue),
            headers=due_headers(delay_ms, queue),
            leased=(held,),
            lease_ms=LEASE_MS // 2,
            sorts=self._options.sorts,
        )

    def queue(self, delay_ms: int, queue: str) -> str:
        """Return the name of the queue that holds messages of ``queue`` for ``delay_ms``."""
        return limited(f"{self._options.names.prefix}.hold.{format_ms(delay_ms)}.", queue)


def bucket(count: int) -> int:
    """Return ``count`` rounded up to seven significant bits: at most 128 + 64 for every doubling above that."""
    spare = max(0, (count - 1).bit_length() - _BITS)
    return units(count, 1 << spare) << spare


class Loop(Topology):
    """One delay queue of one unit, and a second queue whose consumer, in every worker, checks the due times.

        publish --> delay (TTL: one unit) --> wait --due--> published to its queue
                      ^------ rejected ---------'--not yet

    A message makes one round per unit, so the load grows with the number of waiting messages: use `levels` instead
    wherever possible. The consumer is `celery_rmq_delay.worker.queues.Releaser`.
    """

    name = "loop"

    def __init__(self, options: Options) -> None:
        self._sorts = options.sorts
        self.unit_ms = options.unit_ms
        self.max_ms = MAX_TTL_MS // options.unit_ms * options.unit_ms
        kind = options.queue_type
        base = f"{options.names.prefix}.loop.{format_ms(options.unit_ms)}.{kind}"
        self.delay, self.wait = f"{base}.delay", f"{base}.wait"
        self.consumed = self.wait
        shared = {**dict(managed_queue_arguments(kind)), **safe_dead_lettering(kind), "x-dead-letter-exchange": ""}
        delay = {**shared, "x-message-ttl": self.unit_ms, "x-dead-letter-routing-key": self.wait}
        wait = {**shared, "x-dead-letter-routing-key": self.delay}
        self._frame = Objects(queues=(Queue(self.wait, arguments(wait)), Queue(self.delay, arguments(delay))))

    def frame(self) -> Objects:
        """Return both queues."""
        return self._frame

    def arrival(self, queue: str) -> Objects:
        """Return nothing: workers publish due messages to ``queue`` itself."""
        return Objects()

    def route(self, delay_ms: int, queue: str) -> Route:
        """Return the route into the loop."""
        return Route(
            exchange="",
            routing_key=self.delay,
            delay_ms=units(delay_ms, self.unit_ms) * self.unit_ms,
            objects=self._frame,
            key=self.delay,
            headers=due_headers(delay_ms, queue),
            sorts=self._sorts,
        )

    def holding(self) -> tuple[str, ...]:
        """Return both queues."""
        return self.delay, self.wait


class Plugin(Topology):
    """The exchange of the community plugin ``rabbitmq_delayed_message_exchange``, exact to the millisecond.

    The plugin is archived, keeps messages on one node only, and does not report unroutable messages. Use it only if you
    already have it.
    """

    name = "plugin"
    unit_ms = 1
    max_ms = 2**32 - 1  # that of an Erlang timer

    def __init__(self, options: Options) -> None:
        self._options = options
        self._exchange = Exchange(f"{options.names.prefix}.delayed", "x-delayed-message", delays="fanout")
        self._routes: dict[str, Objects] = {}

    def frame(self) -> Objects:
        """Return the exchange, and the one to which it forwards due messages.

        An alternate exchange of the first would receive every delayed message at once; the second has one, for messages
        whose queue was deleted.
        """
        forwards = Binding(self._exchange.name, arrivals(self._options.names), to="exchange")
        return arrival_objects(self._options) + Objects(exchanges=(self._exchange,), bindings=(forwards,))

    def arrival(self, queue: str) -> Objects:
        """Return the exchange for due messages, and its binding of ``queue``."""
        return arrival(self._options, queue)

    def route(self, delay_ms: int, queue: str) -> Route:
        """Return the route through the exchange."""
        if queue not in self._routes:
            self._routes[queue] = self.frame() + self.arrival(queue)
        return Route(
            exchange=self._exchange.name,
            routing_key=queue,
            delay_ms=delay_ms,
            objects=self._routes[queue],
            key=(self._exchange.name, queue),
            headers={"x-delay": delay_ms, **due_headers(delay_ms, queue)},
            mandatory=False,
        )

    def check(self, connection: Connection) -> None:
        """Raise `TopologyError` where the plugin is not enabled, so that the exchange type is unknown."""
        try:
            with another(connection) as own:  # RabbitMQ 3.10 closes the connection, 4.0 and 4.3 the channel
                own.ensure_connection(max_retries=1)
                self._probe(own)
        except NotFound as error:
            raise TopologyError(
                f"The exchange {self._exchange.name!r} does not exist, and the broker's user may not declare it: let "
                f"`{command('apply')}` run as a user who may."
            ) from error
        except AMQPError as error:
            found = getattr(error, "reply_text", error)
            # "invalid" where the plugin is disabled and the exchange still exists.
            if not re.search("(unknown|invalid) exchange type", str(found)):
                raise TopologyError(f"{found}. The plugin cannot be used.") from error
            raise TopologyError(
                "exact_delays contains 'plugin', and the broker does not know the exchange type x-delayed-message "
                f"({found}). Enable rabbitmq_delayed_message_exchange, "
                'or write exact_delays=["plugin", "levels"].'
            ) from error

    def _probe(self, connection: Connection) -> None:
        """Declare an exchange of that type, and delete it: the real one must not exist without its binding."""
        channel = connection.channel()
        probe = replace(self._exchange, name=f"{self._exchange.name}.probe")
        try:
            apply.declare_nowait(channel, probe)
            channel.exchange_delete(probe.name)
        except AccessRefused:  # without the permission to declare it, the existence of the real one has to be enough
            connection.channel().exchange_declare(self._exchange.name, self._exchange.type, passive=True)
