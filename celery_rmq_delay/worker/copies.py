"""Copies of messages in flight, and where they are published. Publishes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, NamedTuple

import amqp
from celery import Task

from .. import headers as h
from ..amqp.capabilities import Capabilities
from ..amqp.copies import copy_of, parked_copy
from ..amqp.route import Route
from ..app.state import AppState
from ..durations import aware_eta, until_ms
from ..events.fingerprint import message_of, type_name
from ..redaction import shortened
from ..retry.delivery import RetryPath
from ..topology.exact.base import Topology
from .flight import InFlight


class Copy(NamedTuple):
    """A message to publish, and where to."""

    message: amqp.Message
    route: Route
    #: Whether it is the route of an exact delay, whose first use declares the objects that all queues share.
    is_exact: bool = False


class Failure(NamedTuple):
    """Why a message goes to the exhausted queue."""

    reason: str
    exception: BaseException
    traceback: str | None = None
    #: The number of workers that it has killed, if it is given up for it.
    crashes: int = 0


class Copies:
    """Makes copies for the connection of one consumer."""

    #: The topology of exact delays on the current or the last connection: threads of the pool need no connection.
    topology: Topology

    def __init__(self, delay: AppState) -> None:
        self._delay = delay
        self.broker = Capabilities((0, 0, 0))

    def choose(self, connection: Any) -> None:
        """Choose the topology of exact delays that the broker of ``connection`` supports. Raises `TopologyError`."""
        self.topology = self._delay.exact.topology(connection)

    def to_queue(self, flight: InFlight, queue: str, more: dict[str, Any]) -> Copy:
        """Return a copy for the end of ``queue`` with ``more`` headers."""
        return Copy(copy_of(flight.message, _forwarded(flight, flight.retries, more)), Route("", queue))

    def parked(self, flight: InFlight, task: Task[Any, Any], tier_index: int, delay_ms: int | None = None) -> Copy:
        """Return a copy for the next attempt: for the delay queue of a tier, or for that of an exact delay."""
        delay, delivery = self._delay, flight.delivery
        is_exact = delay_ms is not None or not delay.has_ladder(flight.queue)
        ttl_ms = delay.ladder(flight.queue, task).ttl(tier_index, delivery.lane) if delay_ms is None else delay_ms
        if is_exact:
            route = delay.exact.along(self.topology, ttl_ms, flight.queue, "countdown", ttl_ms / 1000)
        elif delivery.path is RetryPath.PUBLISH:  # no apply has declared its delay queue
            route = delay.plan(flight.queue, reason_routing=True, tasks=False).route(tier_index, ttl_ms)
        else:
            name = delay.delay_queue(flight.queue, tier_index, ttl_ms)
            route = Route("", name, sorts=delay.queue_type(flight.queue) == "quorum")
        # The attempt has ended: earlier kills do not count together with later ones.
        headers = _forwarded(flight, flight.retries + 1, {**route.headers, h.CRASHES: None})
        return Copy(parked_copy(flight.message, headers, route, self.broker), route, is_exact)

    def until(self, flight: InFlight, eta: Any) -> Copy:
        """Return a copy that waits in the delay queues until its eta; for a past one, a copy for its queue."""
        exact = self._delay.exact
        left = until_ms(aware_eta(self._delay.app, eta))
        held = min(left, exact.longest_ms)
        route = exact.along(self.topology, held, flight.queue, "eta", eta)
        headers = _forwarded(flight, flight.retries, route.headers)
        if held == left and "eta" in headers:
            headers["eta"] = None  # the broker's clock counts; a longer eta is held again
        return Copy(parked_copy(flight.message, headers, route, self.broker), route, is_exact=True)

    def exhausted(
        self, flight: InFlight, failure: Failure, worker: str, fits: Callable[[amqp.Message], bool] | None
    ) -> Copy:
        """Return a copy for the exhausted queue; without texts where it would not fit into a frame."""
        now = h.timestamp(datetime.now(timezone.utc))
        text = h.printable(message_of(failure.exception))
        headers = _forwarded(
            flight,
            flight.retries,
            {
                h.QUEUE: flight.queue,
                h.REASON: failure.reason,
                h.EXCEPTION: type_name(failure.exception),
                h.MESSAGE: shortened(text, h.MAX_MESSAGE),
                h.TRACEBACK: h.bounded(h.printable(failure.traceback or ""), h.MAX_TRACEBACK) or None,
                h.ATTEMPTS: flight.retries + 1,
                h.CRASHES: failure.crashes or flight.headers.get(h.CRASHES),
                h.EXHAUSTED_AT: now,
                h.WORKER: worker,
            },
        )
        headers.setdefault(h.FIRST_FAILED, now)
        copy = copy_of(flight.message, headers)
        if fits is not None and not fits(copy):
            headers.pop(h.TRACEBACK, None)
            headers.pop(h.MESSAGE, None)
            copy = copy_of(flight.message, headers)
        return Copy(copy, Route("", self._delay.settings.exhausted_queue))


def _forwarded(flight: InFlight, retries: int, more: dict[str, Any]) -> dict[str, Any]:
    raw, info = flight.headers, flight.message.delivery_info
    found = h.forwarded(raw, retries=retries, exchange=info["exchange"], routing_key=info["routing_key"], more=more)
    if retries and h.FIRST_FAILED not in found:
        found[h.FIRST_FAILED] = h.timestamp(h.first_death(raw) or datetime.now(timezone.utc))
    return found
