"""The community plugin ``rabbitmq_delayed_message_exchange``: an exchange keeps a message for its ``x-delay``.

The plugin is archived, keeps messages on one node only, and does not report unroutable messages. Use it only if you
already have it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from amqp.exceptions import AccessRefused, AMQPError, NotFound

from ...amqp import apply
from ...amqp.connections import another
from ...amqp.objects import Binding, Exchange, Objects
from ...amqp.route import Route
from ...commands import command
from ...exceptions import TopologyError
from .base import Options, arrival, arrival_objects, arrivals, due_headers

if TYPE_CHECKING:
    from kombu import Connection

#: The plugin's longest delay in milliseconds: that of an Erlang timer.
_LONGEST = 2**32 - 1


class Plugin:
    """The delayed message exchange of the plugin. Its delays are exact to the millisecond."""

    name = "plugin"
    consumed: str | None = None
    unit_ms = 1
    max_ms = _LONGEST

    def __init__(self, options: Options) -> None:
        self._options = options
        self._exchange = Exchange(f"{options.names.prefix}.delayed", "x-delayed-message", delays="fanout")
        self._routes: dict[str, Objects] = {}

    def frame(self) -> Objects:
        """Return the exchange, and the one to which it forwards due messages.

        An alternate exchange of the first would receive every delayed message at once; the second has one, for messages
        whose queue was deleted.
        """
        own = Objects(
            exchanges=(self._exchange,),
            bindings=(Binding(self._exchange.name, arrivals(self._options.names), to="exchange"),),
        )
        return arrival_objects(self._options) + own

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

    def holding(self) -> tuple[str, ...]:
        """Return nothing: the exchange does not expose its messages."""
        return ()

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
