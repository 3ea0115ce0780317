"""Exact delays: the protocol of topologies, and their common parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from kombu import Connection

from ...amqp.objects import Binding, Exchange, Objects
from ...amqp.route import Route
from ...headers import DUE, TO, epoch_ms
from ...ladders import QueueType
from ...names import Names
from ..common import safety_net, undeliverable


@dataclass(frozen=True)
class Options:
    """The options of every topology, from the settings.

    ``unit_ms``: delays are rounded up to a multiple of it. ``levels``: how many binary levels `levels` may use.
    ``exhausted``: the queue of messages whose queue was deleted.
    """

    names: Names
    exhausted: str
    queue_type: QueueType = "classic"
    unit_ms: int = 1000
    levels: int = 28

    @property
    def sorts(self) -> bool:
        """Whether delay queues deliver by priority."""
        return self.queue_type == "quorum"


class Topology(Protocol):
    """Exchanges, queues and bindings that hold a message for any delay and then route it to a queue.

    Everything but `check` is a pure function of the options. The names of its objects contain their properties, so that
    other options make other objects, and messages under way still arrive.
    """

    #: The name in the setting ``exact_delays``.
    name: str
    #: Delays are rounded up to a multiple of this; milliseconds.
    unit_ms: int
    #: The longest delay; milliseconds.
    max_ms: int
    #: A queue that a worker has to consume, so that messages become due; None where the broker needs no worker.
    consumed: str | None = None

    def frame(self) -> Objects:
        """Return the objects that all queues share.

        The first use of a delay declares them; a worker does at its start if `consumed` names a queue.
        """

    def arrival(self, queue: str) -> Objects:
        """Return the objects that route due messages to ``queue``; a worker declares them at its start."""

    def route(self, delay_ms: int, queue: str) -> Route:
        """Return the route of a message to ``queue``; ``delay_ms`` is at least 1 and at most `max_ms`.

        Its objects include those of `frame` and `arrival`.
        """

    def holding(self) -> tuple[str, ...]:
        """Return the shared queues in which messages wait, in the order of their declaration.

        A topology may have more. If none of them exists, no delay was used yet, or nothing waits. The shared objects
        can contain an ``auto_delete`` exchange that is bound to them: it saves inspecting each queue.
        """
        return ()

    def check(self, connection: Connection) -> None:
        """Raise `TopologyError` where the connected broker does not support the topology."""
        return  # most need nothing of it


def units(delay_ms: int, unit_ms: int) -> int:
    """Return a delay in whole units, rounded up."""
    return -(-delay_ms // unit_ms)


def arrivals(names: Names) -> str:
    """Return the direct exchange that routes a message to the queue in its routing key."""
    return f"{names.prefix}.arrive"


def arrival_objects(options: Options) -> Objects:
    """Return the objects that route messages to queues by name, without the bindings of queues."""
    exchange = Exchange(arrivals(options.names), "direct", undeliverable(options.names))
    return safety_net(options.names, options.exhausted) + Objects(exchanges=(exchange,))


def arrival(options: Options, queue: str) -> Objects:
    """Return the objects that route messages to ``queue`` by name, also when they are dead-lettered."""
    return arrival_objects(options) + Objects(bindings=(Binding(arrivals(options.names), queue, key=queue),))


def due_headers(delay_ms: int, queue: str, now_ms: int | None = None) -> dict[str, Any]:
    """Return the headers for the due time of a message and its queue."""
    return {DUE: (epoch_ms() if now_ms is None else now_ms) + delay_ms, TO: queue}
