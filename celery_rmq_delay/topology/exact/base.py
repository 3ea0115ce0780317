"""Exact delays: what every topology for them offers, and what they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...amqp.objects import Binding, Exchange, Objects
from ...amqp.route import Route
from ...durations import format_ms
from ...exceptions import DelayError
from ...headers import DUE, TO, epoch_ms
from ...names import Names
from ..common import safety_net, undeliverable

if TYPE_CHECKING:
    from kombu import Connection

    from ...ladders import QueueType

__all__ = [
    "Options",
    "Route",
    "Topology",
    "arrival",
    "arrivals",
    "check_longest",
    "due_headers",
    "safety_net",
    "undeliverable",
    "units",
]


@dataclass(frozen=True)
class Options:
    """What the settings say to every topology.

    ``unit_ms``: delays are rounded up to a multiple of it. ``levels``: how many binary levels `levels` may use.
    ``exhausted`` takes what comes back to a queue that is gone.
    """

    names: Names
    exhausted: str
    queue_type: QueueType = "classic"
    unit_ms: int = 1000
    levels: int = 28

    @property
    def sorts(self) -> bool:
        """Whether delay queues hand out messages by priority."""
        return self.queue_type == "quorum"


class Topology(Protocol):
    """Exchanges, queues and bindings that hold a message for any delay and hand it to a queue.

    All of it is a pure function of the options, but for `check`. What it is made of is named after what it does, so
    that other options make other objects, and messages under way still arrive.
    """

    #: The name in the setting ``exact_delays``.
    name: str
    #: Delays are rounded up to a multiple of this; milliseconds.
    unit_ms: int
    #: The longest delay; milliseconds.
    max_ms: int
    #: A queue whose messages only go on when a worker consumes it; None where the broker does it all.
    consumed: str | None

    def frame(self) -> Objects:
        """Return what all queues share."""

    def route(self, delay_ms: int, queue: str) -> Route:
        """Return the way of a message to ``queue``; ``delay_ms`` is at least 1 and at most `max_ms`."""

    def holding(self) -> tuple[str, ...]:
        """Return the queues of the frame in which messages wait; a topology may have others besides."""

    def check(self, connection: Connection) -> None:
        """Raise `TopologyError` where the connected broker cannot do it."""


# -- what the topologies share ---------------------------------------------------------------------------------------


def units(delay_ms: int, unit_ms: int) -> int:
    """Return a delay in whole units, rounded up."""
    return -(-delay_ms // unit_ms)


def arrivals(names: Names) -> str:
    """Return the direct exchange that hands a message to the queue in its routing key."""
    return f"{names.prefix}.arrive"


def arrival_frame(options: Options) -> Objects:
    """Return what hands messages to queues by their names, but for the bindings of queues."""
    exchange = Exchange(arrivals(options.names), "direct", undeliverable(options.names))
    return safety_net(options.names, options.exhausted) + Objects(exchanges=(exchange,))


def arrival(options: Options, queue: str) -> Objects:
    """Return what hands messages to ``queue`` by its name, on the dead-letter path too."""
    return arrival_frame(options) + Objects(bindings=(Binding(arrivals(options.names), queue, key=queue),))


def due_headers(delay_ms: int, queue: str, now_ms: int | None = None) -> dict[str, Any]:
    """Return the headers that say when a message is due, and in which queue."""
    return {DUE: (epoch_ms() if now_ms is None else now_ms) + delay_ms, TO: queue}


def check_longest(delay_ms: int, topology: Topology, what: str, found: object) -> None:
    """Raise `DelayError` for a delay that the topology cannot hold."""
    if delay_ms > topology.max_ms:
        hint = (
            f"The longest delay of {topology.name!r} with a unit of {format_ms(topology.unit_ms)} is "
            f"{format_ms(topology.max_ms)}: use a shorter one, or a larger exact_unit."
        )
        raise DelayError(what, found, hint)
