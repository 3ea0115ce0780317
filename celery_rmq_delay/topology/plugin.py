"""The community plugin ``rabbitmq_delayed_message_exchange``: the exchange itself keeps a message for its ``x-delay``.

The plugin is archived, keeps messages on one node only, and cannot tell whether a queue will take a message. It is here
for those who have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp.exceptions import AMQPError

from ..broker import another
from ..exceptions import TopologyError
from . import apply
from .exact import Options, Route, due_headers
from .objects import Binding, Exchange, Objects

if TYPE_CHECKING:
    from kombu import Connection

#: The plugin's longest delay in milliseconds: an Erlang timer's.
_LONGEST = 2**32 - 1


class Plugin:
    """The delayed message exchange, where the broker has it. Its delays are exact to the millisecond."""

    name = "plugin"
    consumed: str | None = None
    unit_ms = 1
    max_ms = _LONGEST

    def __init__(self, options: Options) -> None:
        self.exchange = f"{options.names.prefix}.plugin"
        self._routes: dict[str, Objects] = {}

    def frame(self) -> Objects:
        """Return the exchange.

        It has no alternate exchange, which would get every delayed message at once.
        """
        return Objects(exchanges=(Exchange(self.exchange, "x-delayed-message", delays="direct"),))

    def route(self, delay_ms: int, queue: str) -> Route:
        """Return the way through the exchange."""
        if queue not in self._routes:
            self._routes[queue] = self.frame() + Objects(bindings=(Binding(self.exchange, queue, key=queue),))
        return Route(
            exchange=self.exchange,
            routing_key=queue,
            delay_ms=delay_ms,
            objects=self._routes[queue],
            key=(self.exchange, queue),
            headers={"x-delay": delay_ms, **due_headers(delay_ms, queue)},
            mandatory=False,
        )

    def holding(self) -> tuple[str, ...]:
        """Return nothing: the exchange does not show what it keeps."""
        return ()

    def check(self, connection: Connection) -> None:
        """Raise `TopologyError` where the plugin is not enabled: RabbitMQ does not know the exchange's type."""
        try:
            with another(connection) as own:  # RabbitMQ 3.10 closes the connection, 4.0 and 4.3 the channel
                own.ensure_connection(max_retries=1)
                channel = own.channel()
                for exchange in self.frame().exchanges:
                    apply.declare_nowait(channel, exchange)
                apply.synchronise(channel)
        except AMQPError as error:
            found = getattr(error, "reply_text", error)
            if "unknown exchange type" not in str(found):
                raise TopologyError(f"{found}. Drain and delete the exchange {self.exchange!r}.") from error
            raise TopologyError(
                "exact_delays asks for 'plugin', and the broker does not know the exchange type x-delayed-message "
                f"({found}). Enable rabbitmq_delayed_message_exchange, "
                'or write exact_delays=["plugin", "levels"].'
            ) from error
