"""Binary levels: a delay of n units passes one delay queue for every bit that is set in n.

    publish --> level 2 --bit 2: 1--> queue 2 (4 units) --> level 1 --bit 1: 0--> level 0 --bit 0: 1--> queue 0 (1 unit)
            --> deliver --> its queue

The routing key is ``<queue>.<bit 0>.<bit 1>...`` up to the highest bit that is set, and dead-lettering keeps it. The
lowest bit comes first, so that a level's binding does not depend on the number of levels, and a short delay has a short
key. The queue's name is one escaped word of the key, so that no key is the suffix of another. The idea of binary levels
is from NServiceBus (its delay infrastructure for RabbitMQ has 28 levels).

A quorum queue that dead-letters at least once waits for the confirms of 32 messages, wherever they go. So quorum levels
deliver to a due queue of each destination, without a limit of its length, and only this one waits if the destination is
full:

    deliver --> due queue (TTL: 0) --> arrive --> its queue
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from urllib.parse import quote

from ...amqp.objects import Binding, Exchange, Objects, Queue, arguments
from ...amqp.route import Route
from ...durations import MAX_TTL_MS, format_ms
from ...names import MAX_NAME_BYTES, digest, limited
from ..common import managed_queue_arguments, safe_dead_lettering, safety_net, undeliverable
from .base import Options, Topology, arrival, arrivals, due_headers, units


class Levels(Topology):
    """The default: no plugin or worker, any queue type, one set of queues for all destinations."""

    name = "levels"

    def __init__(self, options: Options) -> None:
        self._options = options
        self.unit_ms = options.unit_ms
        #: The number of levels, limited by RabbitMQ's longest TTL.
        self.levels = min(options.levels, (MAX_TTL_MS // options.unit_ms).bit_length())
        self.max_ms = (2**self.levels - 1) * options.unit_ms
        self._routes: dict[str, Objects] = {}
        self._base = f"{options.names.prefix}.levels.{format_ms(options.unit_ms)}.{options.queue_type}"

    def level(self, number: int) -> str:
        """Return the name of a level's exchange and of its queue."""
        return f"{self._base}.{number}"

    @property
    def delivery(self) -> str:
        """The exchange after the lowest level."""
        return f"{self._base}.deliver"

    @property
    def mark(self) -> str:
        """The exchange that shows that a level's queue exists."""
        return f"{self._base}.used"

    def frame(self) -> Objects:
        """Return all levels, and their mark."""
        return self._frame

    @cached_property
    def _frame(self) -> Objects:
        found = self._delivery()
        for number in range(self.levels):
            found += self._level(number)
        # RabbitMQ deletes it with its last binding; no message is published there.
        mark = Exchange(self.mark, "fanout", auto_delete=True)
        return found + Objects((mark,), bindings=tuple(Binding(self.mark, queue) for queue in self.holding()))

    def arrival(self, queue: str) -> Objects:
        """Return the exchange after the lowest level, and the way from there to ``queue``."""
        delivery = Objects(bindings=(self.binding(queue),))
        if (due := self.due(queue)) is None:
            return self._delivery() + delivery
        declared = {
            **self._declared,
            "x-message-ttl": 0,
            "x-dead-letter-exchange": arrivals(self._options.names),
            "x-dead-letter-routing-key": queue,
        }
        waits = Objects(queues=(Queue(due, arguments(declared)),))
        return self._delivery() + arrival(self._options, queue) + waits + delivery

    def due(self, queue: str) -> str | None:
        """Return the due queue of ``queue``, in which messages wait while that is full; None for classic levels."""
        return limited(f"{self._base}.due.", queue) if self._options.queue_type == "quorum" else None

    def route(self, delay_ms: int, queue: str) -> Route:
        """Return the route through the levels, from the highest bit that is set."""
        if queue not in self._routes:
            self._routes[queue] = self.frame() + self.arrival(queue)
        count = units(delay_ms, self.unit_ms)
        return Route(
            exchange=self.level(count.bit_length() - 1),
            routing_key=routing_key(queue, count),
            delay_ms=count * self.unit_ms,
            objects=self._routes[queue],
            key=(self._base, queue),
            headers=due_headers(delay_ms, queue),
            sorts=self._options.sorts,
        )

    def binding(self, queue: str) -> Binding:
        """Return the binding that routes messages from the lowest level to ``queue``, or to its due queue."""
        return Binding(self.delivery, self.due(queue) or queue, key=f"{word(queue)}.#")

    @property
    def _declared(self) -> dict[str, object]:
        kind = self._options.queue_type
        return {**dict(managed_queue_arguments(kind)), **safe_dead_lettering(kind)}

    def holding(self) -> tuple[str, ...]:
        """Return the levels' queues, the shortest first."""
        return tuple(self.level(number) for number in range(self.levels))

    def _delivery(self) -> Objects:
        exchange = Exchange(self.delivery, "topic", undeliverable(self._options.names))
        return safety_net(self._options.names, self._options.exhausted) + Objects(exchanges=(exchange,))

    def _level(self, number: int) -> Objects:
        name = self.level(number)
        below = self.level(number - 1) if number else self.delivery
        declared = {**self._declared, "x-message-ttl": self.unit_ms * 2**number, "x-dead-letter-exchange": below}
        before = "*." * (number + 1)
        return Objects(
            exchanges=(Exchange(name, "topic"),),
            queues=(Queue(name, arguments(declared)),),
            bindings=(Binding(name, name, key=f"{before}1.#"), Binding(name, below, to="exchange", key=f"{before}0.#")),
        )


@lru_cache(maxsize=1024)
def word(queue: str) -> str:
    """Return a queue's name as one word of a routing key, or a digest where it is too long."""
    escaped = quote(queue, safe="").replace(".", "%2E")
    if len(escaped) + 2 * MAX_TTL_MS.bit_length() <= MAX_NAME_BYTES:
        return escaped
    return f"%{digest(queue)}"


def routing_key(queue: str, count: int) -> str:
    """Return the key of a message that waits for ``count`` units, which is at least 1."""
    return ".".join([word(queue), *reversed(f"{count:b}")])
