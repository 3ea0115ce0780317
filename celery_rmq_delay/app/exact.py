"""Exact delays of one app: the choice of the topology, and the declaration of its objects."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import amqp
from kombu import Connection

from ..amqp import apply
from ..amqp.objects import Binding, Exchange, Queue
from ..amqp.route import Route
from ..durations import format_ms
from ..exceptions import DelayError, TopologyError
from ..ladders import QueueType
from ..settings.values import Settings
from ..topology.common import managed_queue_arguments
from ..topology.exact.alternatives import Loop
from ..topology.exact.base import Options, Topology
from ..topology.exact.registry import make

logger = logging.getLogger(__name__)

#: Declares the objects for a user who may not.
_COMMAND = "apply --exact-delays"
#: Seconds for which a new connection may rely on what an earlier one to the same broker has declared.
RELIED_ON = 60.0


@dataclass
class _Known:
    chosen: Topology | None = None
    declared: set[Exchange | Queue | Binding] = field(default_factory=set)
    prepared: set[Hashable] = field(default_factory=set)
    #: When the first of these connections was opened; monotonic seconds.
    since: float = field(default_factory=time.monotonic)


def _broker(connection: Connection, opened: amqp.Connection) -> Hashable:
    node: Any = opened  # the stubs lack what the broker reports
    reported = [node.server_properties.get(name) for name in ("cluster_name", "version")]
    return connection.hostname, connection.port, connection.virtual_host, *reported


def _opened(connection: Connection) -> amqp.Connection:
    # A pooled connection is opened by the first access to its channel.
    channel: Any = connection.default_channel
    opened: amqp.Connection = channel.connection
    return opened


#: The exact delays of all apps of this process.
_EVERY: WeakSet[ExactDelays] = WeakSet()


class ExactDelays:
    """Chooses among the topologies of the settings, and caches which objects exist."""

    def __init__(self, settings: Settings, queue_type: QueueType) -> None:
        self.settings = settings
        self.queue_type = settings.exact.queue_type or queue_type
        #: The options of all topologies.
        self.options = Options(
            names=settings.names,
            exhausted=settings.exhausted_queue,
            queue_type=self.queue_type,
            unit_ms=settings.exact.unit_ms,
            levels=settings.exact.levels,
        )
        self.topologies = tuple(make(name, self.options) for name in settings.exact.topologies)
        #: State by AMQP connection: a new connection may lead to another broker, or to one that has lost its objects.
        self._known: WeakKeyDictionary[amqp.Connection, _Known] = WeakKeyDictionary()
        #: The newest of these states by broker, for the next connection. Without a pool each call opens a connection.
        self._newest: dict[Hashable, _Known] = {}
        self._lock = threading.RLock()
        _EVERY.add(self)
        #: When topologies were found unused, by name; monotonic seconds.
        self._unused: dict[str, float] = {}
        #: Whether a missing consumer has not been logged yet; checked with every publish.
        self._warns = any(topology.consumed for topology in self.topologies)

    def _of(self, connection: Connection) -> _Known:
        opened = _opened(connection)
        known = self._known.get(opened)
        if known is None:
            broker = _broker(connection, opened)
            known, newest = _Known(), self._newest.get(broker)
            if newest is not None and time.monotonic() - newest.since <= RELIED_ON:
                known = _Known(newest.chosen, newest.declared & self._noticed, since=newest.since)
            known = self._newest[broker] = self._known.setdefault(opened, known)
        return known

    @cached_property
    def _noticed(self) -> frozenset[Exchange | Queue | Binding]:
        """The shared objects that messages are published to: if they are gone, the broker refuses the message."""
        return frozenset(each for topology in self.topologies if topology.holding() for each in topology.frame())

    def topology(self, connection: Connection) -> Topology:
        """Return the first topology that the broker supports, checked once a connection. Raises `TopologyError`."""
        known = self._of(connection)
        if known.chosen is None:
            known.chosen = self._choose(connection)
        return known.chosen

    def _choose(self, connection: Connection) -> Topology:
        *preferred, last = self.topologies
        for topology in preferred:
            try:
                topology.check(connection)
            except TopologyError as error:  # noqa: PERF203 - each checks the broker
                logger.warning("%s Exact delays go on with the next of exact_delays.", error)
            else:
                return topology
        last.check(connection)
        return last

    def route(self, connection: Connection, delay_ms: int, queue: str, what: str, found: object) -> Route:
        """Return the route of a message to ``queue``, direct for 0 ms. Raises `DelayError` for a delay too long."""
        if not delay_ms:
            return Route(exchange="", routing_key=queue)
        return self.along(self.topology(connection), delay_ms, queue, what, found)

    def along(self, topology: Topology, delay_ms: int, queue: str, what: str, found: object) -> Route:
        """Return the route of `route` by a given topology."""
        if not delay_ms:
            return Route(exchange="", routing_key=queue)
        self.check(delay_ms, what, found)
        return topology.route(delay_ms, queue)

    def check(self, delay_ms: int, what: str, found: object) -> None:
        """Raise `DelayError` for a delay that one of the settings' topologies cannot hold."""
        for topology in self.topologies:
            if delay_ms > topology.max_ms:
                hint = (
                    f"The longest delay of {topology.name!r} with a unit of {format_ms(topology.unit_ms)} is "
                    f"{format_ms(topology.max_ms)}: use a shorter one, or a larger exact_unit."
                )
                raise DelayError(what, found, hint)

    @property
    def longest_ms(self) -> int:
        """The longest delay that every topology of the settings can hold, in milliseconds."""
        return min(topology.max_ms for topology in self.topologies)

    def warn_unconsumed(self, connection: Connection) -> None:
        """Log once that published messages wait for a worker and that no worker consumes them."""
        if not self._warns:
            return
        topology = self.topology(connection)
        if topology.consumed is None:
            return
        self._warns = False
        if apply.unconsumed(connection, topology.consumed) is not None:
            text = "exact_delays is %r, and no worker consumes %s: delayed messages stay there until one starts."
            logger.warning(text, topology.name, topology.consumed)

    def prepare(self, connection: Connection, route: Route) -> None:
        """Declare the objects of a route, whose queue exists, at its first use on this connection. Blocks then."""
        if not self.settings.apply_on_start or (route.key is not None and route.key in self._of(connection).prepared):
            return
        self._declare(connection, route)

    def _declare(self, connection: Connection, route: Route) -> None:
        with self._lock:
            known = self._of(connection)
            missing = route.objects.without(known.declared)
            if any(missing):
                if not known.declared:
                    kept = managed_queue_arguments(self.queue_type)
                    apply.ensure_queue(connection, Queue(self.settings.exhausted_queue, kept), _COMMAND)
                with connection.channel() as channel:
                    apply.declare(channel, missing, _COMMAND)
                known.declared.update(missing)
            known.prepared.add(route.key)

    def forget(self, connection: Connection) -> None:
        """Declare all objects again before their next use, as some were deleted."""
        with self._lock:
            opened = _opened(connection)
            self._known.pop(opened, None)
            self._newest.pop(_broker(connection, opened), None)

    def in_use(self, connection: Connection, topology: Topology, *, known_for: float = 0.0) -> bool:
        """Return whether the shared objects of a topology have to exist.

        The first use of a delay declares them. Without ``apply_on_start`` no use does, and workers consume some.
        ``known_for``: how old the answer may be, in seconds; RabbitMQ logs each inspection of a missing queue.
        """
        held = topology.holding()
        if not (self.settings.apply_on_start and held) or topology.consumed is not None:
            return True
        if time.monotonic() - self._unused.get(topology.name, -math.inf) < known_for:
            return False
        marks = [each.name for each in topology.frame().exchanges if each.auto_delete]
        # The first queue, too: an operator may have deleted the mark.
        if any(apply.exchange_exists(connection, name) for name in marks) or any(
            apply.inspect_queue(connection, name) is not None for name in (held[:1] if marks else held)
        ):
            return True
        self._unused[topology.name] = time.monotonic()
        return False

    def declare(self, connection: Connection, *, unused: bool = False) -> None:
        """Declare the objects that all queues share, of topologies in use; with ``unused`` of each. Blocks."""
        self.forget(connection)  # it may be another broker, or one that has lost its objects
        chosen = self.topology(connection)
        for topology in self.topologies:
            # Messages that are left in a loop need its queues.
            if isinstance(topology, Loop) or (topology is chosen and (unused or self.in_use(connection, topology))):
                self._declare(connection, Route("", "", objects=topology.frame()))

    def bind(self, connection: Connection, queue: str) -> None:
        """Declare the objects that route due messages to the existing queue ``queue``. Blocks."""
        self._declare(connection, Route("", "", objects=self.topology(connection).arrival(queue)))


def _renew_after_fork() -> None:
    """Forget what threads of the parent process may have been changing, and the locks that they may have held."""
    for each in _EVERY:
        each._lock, each._known, each._newest = threading.RLock(), WeakKeyDictionary(), {}


os.register_at_fork(after_in_child=_renew_after_fork)
