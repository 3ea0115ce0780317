"""Targets of a migration: the route and the headers of a copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Protocol

from ... import headers as h
from ...amqp.route import Route
from ...app.exact import ExactDelays
from ...durations import format_ms
from ...exceptions import CannotHoldError, RmqDelayError
from ...topology.exact.alternatives import Loop
from .address import Address, Destination

if TYPE_CHECKING:
    from kombu import Connection

    from ...app.state import AppState
    from ...settings.values import Settings

NAMES = ("levels", "hold", "loop", "plugin", "ladder")


@dataclass(frozen=True)
class Copy:
    """One copy of a message. ``counted`` is the counter of the report, ``by`` what it counts by."""

    route: Route
    headers: dict[str, Any]
    counted: str
    by: str


class Target(Protocol):
    """Where the copies of messages go."""

    name: str

    def copy(self, raw: Mapping[str, Any], address: Address, to: Destination, now: int) -> Copy:
        """Return the copy for one queue of a message with the headers ``raw``. Raises `CannotHoldError`.

        ``now`` is milliseconds since the epoch.
        """

    def prepare(self, connection: Connection, route: Route) -> None:
        """Declare what a route needs. Blocks."""


class Home(Target):
    """The queues themselves, as Celery publishes: attempts are its ``retries``, and the due time is the ``eta``."""

    name = "queues"

    def copy(self, raw: Mapping[str, Any], address: Address, to: Destination, now: int) -> Copy:
        """Return a copy that needs no object of this package."""
        headers = stock_headers(raw)
        if address.retries is not None:
            headers["retries"] = address.retries
        if address.due_ms > now:
            headers["eta"] = h.timestamp(datetime.fromtimestamp(address.due_ms / 1000, timezone.utc))
        elif "eta" in headers:
            headers["eta"] = None
        return Copy(Route("", to.queue), headers, "delivered", to.queue)

    def prepare(self, connection: Connection, route: Route) -> None:
        """Declare nothing: a message stays where it is if its queue does not exist."""


class DelayTarget(Target, Protocol):
    """Holds a message until it is due, then routes it to its queue."""

    def queues(self) -> frozenset[str]:
        """Return the queues in which messages wait, as far as they are known in advance."""

    def route(self, delay_ms: int, queue: str, headers: Mapping[str, Any]) -> Route:
        """Return the route to ``queue``; ``delay_ms`` is at least 1. Raises `CannotHoldError`."""

    def copy(self, raw: Mapping[str, Any], address: Address, to: Destination, now: int) -> Copy:
        """Return a copy that waits until it is due; directly to its queue where it is due."""
        wait = max(0, address.due_ms - now)
        route, counted = (self.route(wait, to.queue, raw), "moved") if wait else (Route("", to.queue), "delivered")
        more = {**route.headers, h.DUE: address.due_ms} if h.DUE in route.headers else route.headers
        headers = copied_headers(
            raw, exchange=to.exchange, routing_key=to.routing_key, retries=address.retries, more=more
        )
        return Copy(route, headers, counted, to.queue)


class ExactTarget(DelayTarget):
    """A topology for exact delays."""

    def __init__(self, exact: ExactDelays, connection: Connection) -> None:
        self._exact = exact
        self._topology = exact.topology(connection)
        self.name = self._topology.name

    def queues(self) -> frozenset[str]:
        """Return the shared queues in which messages wait."""
        return frozenset(self._topology.holding())

    def route(self, delay_ms: int, queue: str, _headers: Mapping[str, Any]) -> Route:
        """Return the route through the topology."""
        if delay_ms > self._topology.max_ms:
            raise CannotHoldError(f"longer than {format_ms(self._topology.max_ms)}, the longest delay of {self.name}")
        return self._topology.route(delay_ms, queue)

    def prepare(self, connection: Connection, route: Route) -> None:
        """Declare what a route needs."""
        self._exact.prepare(connection, route)


class LadderTarget(DelayTarget):
    """The ladders of the settings: the lowest tier that is long enough."""

    name = "ladder"

    def __init__(self, delay: AppState) -> None:
        self._delay = delay
        # Declares each route's objects once.
        self._exact = delay.exact
        self._plans = {name: delay.plan(name, reason_routing=True, tasks=False) for name in delay.origin_queues()}

    def queues(self) -> frozenset[str]:
        """Return the delay queues of the ladders in force."""
        plans = [self._delay.plan(name, reason_routing=True) for name in self._delay.origin_queues()]
        return frozenset(queue.name for plan in plans for _, _, queue in plan.delay_queues(plan.ladders.values()))

    def route(self, delay_ms: int, queue: str, headers: Mapping[str, Any]) -> Route:
        """Return the route into a tier."""
        plan = self._plans.get(queue)
        if plan is None:
            raise CannotHoldError(f"queue {queue!r} has no ladder")
        task = self._delay.app.tasks.get(str(headers.get("task")))
        ladder = plan.ladder if task is None else self._delay.ladder(queue, task)
        lane = headers.get(h.LANE)
        for tier_index in range(1, len(ladder) + 1):
            if (ttl := ladder.ttl(tier_index, lane)) >= delay_ms:
                return plan.route(tier_index, ttl)
        raise CannotHoldError(f"longer than {format_ms(ladder.tiers_ms[-1])}, the last tier of queue {queue!r}")

    def prepare(self, connection: Connection, route: Route) -> None:
        """Declare a tier."""
        self._exact.prepare(connection, route)


def target(name: str | None, delay: AppState, connection: Connection) -> DelayTarget:
    """Return a target by its name; by default the exact delays of the settings.

    Raises `RmqDelayError` if messages would not return from it.
    """
    if name == "ladder":
        return LadderTarget(delay)
    exact = delay.exact
    if name is not None:
        if name == Loop.name and Loop.name not in delay.settings.exact.topologies:
            raise RmqDelayError(
                "Workers release the messages of a loop, but those of this app do not consume one: add 'loop' to "
                "exact_delays, restart the workers, then migrate."
            )
        exact = ExactDelays(_only(delay.settings, name), exact.queue_type)
    return ExactTarget(exact, connection)


def _only(settings: Settings, name: str) -> Settings:
    return replace(settings, exact=replace(settings.exact, topologies=(name,)))


def stock_headers(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of a message without those of this package, of the broker and of the delaying plugin."""
    return {name: value for name, value in h.of_task(raw).items() if name != "x-delay"}


def copied_headers(
    headers: Mapping[str, Any], *, exchange: str | None, routing_key: str | None, retries: int | None,
    more: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return the headers of a copy; ``more`` are those of its route.

    The eta is removed: the broker holds the message until then. Exchange and routing key, if set, are those with which
    it would have reached its queue.
    """
    kept = {name: value for name, value in headers.items() if name != "x-delay"}  # the plugin's, of a past delay
    if retries is not None:
        first = h.first_death(headers)
        failed = h.timestamp(first) if first else None
        kept = h.forwarded(
            kept, retries=retries, exchange=exchange or "", routing_key=routing_key or "",
            more={h.FIRST_FAILED: headers.get(h.FIRST_FAILED) or failed},
        )  # fmt: skip
    else:
        kept = h.without_dead_letters(kept)
        for name in (h.DUE, h.TO):
            kept.pop(name, None)
        if exchange is not None and h.EXCHANGE not in kept:
            kept |= {h.EXCHANGE: exchange, h.ROUTING_KEY: routing_key or ""}
            if "retries" in kept:
                kept[h.RETRIES] = kept["retries"]
    if "eta" in kept:
        kept["eta"] = None
    return {**kept, **more}
