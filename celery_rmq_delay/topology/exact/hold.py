"""A queue for each (delay, destination), which the broker deletes when it was unused for a while.

One hop, and no message waits behind one with a longer delay. Only classic queues: declaring a quorum queue again does
not renew its lease (``x-expires``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...amqp.objects import Objects, Queue, arguments
from ...amqp.route import Route
from ...durations import MAX_TTL_MS, format_ms
from ...names import limited
from .base import Options, arrival, arrival_objects, arrivals, due_headers, units

if TYPE_CHECKING:
    from kombu import Connection

#: How much longer than its messages a queue lives, in milliseconds. Each publish declares the queue, which renews the
#: lease, and its confirm has to arrive within half of this time.
LEASE_MS = 60_000
#: The number of significant bits of delays, which limits the number of queues of a destination.
_BITS = 7


class Hold:
    """Expiring queues, one per delay and destination.

    A delay of up to 128 units is exact to the unit. A longer one is rounded up by less than 1/64 of it.
    """

    name = "hold"
    consumed: str | None = None

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

    def holding(self) -> tuple[str, ...]:
        """Return nothing: queues are created and deleted with their delays."""
        return ()

    def check(self, connection: Connection) -> None:
        """Do nothing: every version of RabbitMQ supports it."""


def bucket(count: int) -> int:
    """Return ``count`` rounded up to seven significant bits: at most 128 + 64 for every doubling above that."""
    spare = max(0, (count - 1).bit_length() - _BITS)
    return units(count, 1 << spare) << spare
