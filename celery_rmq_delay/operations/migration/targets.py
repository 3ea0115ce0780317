"""Targets of a migration: the route and the headers of a copy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from kombu import Connection
from kombu.message import Message

from ... import headers as h
from ...amqp.apply import ensure_queue, ready_counts
from ...amqp.capabilities import capabilities
from ...amqp.objects import Queue
from ...amqp.route import Route
from ...app.exact import ExactDelays
from ...app.state import AppState
from ...durations import format_ms
from ...exceptions import CannotHoldError, NotUnderstoodError, RmqDelayError
from ...topology.exact.alternatives import Loop
from .address import Address, Destination, Source, Waiting

TARGETS = ("levels", "hold", "loop", "plugin", "ladder")


@dataclass(frozen=True)
class Copy:
    """One copy of a message. ``counted`` is the counter of the report, ``by`` what it counts by."""

    route: Route
    headers: dict[str, Any]
    counted: str
    by: str


class Home:
    """The queues themselves, as Celery publishes: attempts are its ``retries``, and the due time is the ``eta``."""

    name = "queues"

    def copy(self, raw: Mapping[str, Any], address: Address, to: Destination, now: int) -> Copy:
        """Return a copy that needs no object of this package; ``now`` is milliseconds since the epoch."""
        headers = stock_headers(raw)
        if address.retries is not None:
            headers["retries"] = address.retries
        if address.due_ms > now:
            headers["eta"] = h.timestamp(datetime.fromtimestamp(address.due_ms / 1000, timezone.utc))
        elif "eta" in headers:
            headers["eta"] = None
        return Copy(Route("", to.queue), headers, "delivered", to.queue)


class DelayTarget(ABC):
    """Holds a message until it is due, then routes it to its queue."""

    name: str

    def __init__(self, exact: ExactDelays) -> None:
        #: Declares each route's objects once.
        self.exact = exact

    @abstractmethod
    def queues(self) -> frozenset[str]:
        """Return the queues in which messages wait, as far as they are known in advance."""

    @abstractmethod
    def route(self, delay_ms: int, queue: str, headers: Mapping[str, Any]) -> Route:
        """Return the route to ``queue``; ``delay_ms`` is at least 1. Raises `CannotHoldError`."""

    def copy(self, raw: Mapping[str, Any], address: Address, to: Destination, now: int) -> Copy:
        """Return a copy that waits until it is due; directly to its queue where it is due."""
        wait = max(0, address.due_ms - now)
        route, counted = (self.route(wait, to.queue, raw), "moved") if wait else (Route("", to.queue), "delivered")
        more = {**route.headers, h.DUE: address.due_ms} if h.DUE in route.headers else route.headers
        return Copy(route, _copied_headers(raw, address, to, more), counted, to.queue)


class _Exact(DelayTarget):
    def __init__(self, exact: ExactDelays, connection: Connection) -> None:
        super().__init__(exact)
        self._topology = exact.topology(connection)
        self.name = self._topology.name

    def queues(self) -> frozenset[str]:
        return frozenset(self._topology.holding())

    def route(self, delay_ms: int, queue: str, _headers: Mapping[str, Any]) -> Route:
        if delay_ms > self._topology.max_ms:
            raise CannotHoldError(f"longer than {format_ms(self._topology.max_ms)}, the longest delay of {self.name}")
        return self._topology.route(delay_ms, queue)


class _Ladders(DelayTarget):
    """The ladders of the settings: the lowest tier that is long enough."""

    name = "ladder"

    def __init__(self, delay: AppState) -> None:
        super().__init__(delay.exact)
        self._delay = delay
        self._plans = {name: delay.plan(name, reason_routing=True, tasks=False) for name in delay.origin_queues()}

    def queues(self) -> frozenset[str]:
        plans = [self._delay.plan(name, reason_routing=True) for name in self._plans]
        return frozenset(queue.name for plan in plans for _, _, queue in plan.delay_queues(plan.ladders.values()))

    def route(self, delay_ms: int, queue: str, headers: Mapping[str, Any]) -> Route:
        plan = self._plans.get(queue)
        if plan is None:
            raise CannotHoldError(f"queue {queue!r} has no ladder")
        task = self._delay.app.tasks.get(str(headers.get("task")))
        ladder = plan.ladder if task is None else self._delay.ladder(queue, task)
        for tier_index in range(1, len(ladder) + 1):
            if (ttl := ladder.ttl(tier_index, headers.get(h.LANE))) >= delay_ms:
                return plan.route(tier_index, ttl)
        raise CannotHoldError(f"longer than {format_ms(ladder.tiers_ms[-1])}, the last tier of queue {queue!r}")


def target(name: str | None, delay: AppState, connection: Connection) -> DelayTarget:
    """Return a target by its name; by default the exact delays of the settings.

    Raises `RmqDelayError` if messages would not return from it.
    """
    if name == "ladder":
        return _Ladders(delay)
    settings, exact = delay.settings, delay.exact
    if name == Loop.name and Loop.name not in settings.exact.topologies:
        raise RmqDelayError(
            "Workers release the messages of a loop, but those of this app do not consume one: add 'loop' to "
            "exact_delays, restart the workers, then migrate."
        )
    if name is not None:
        settings = replace(settings, exact=replace(settings.exact, topologies=(name,)))
        exact = ExactDelays(settings, exact.queue_type)
    return _Exact(exact, connection)


def stock_headers(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of a message without those of this package, of the broker and of the delaying plugin."""
    return {name: value for name, value in h.of_task(raw).items() if name != "x-delay"}


def _copied_headers(
    headers: Mapping[str, Any], address: Address, to: Destination, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the headers of a copy for one queue; ``more`` are those of its route.

    The eta is removed: the broker holds the message until then.
    """
    kept = {name: value for name, value in headers.items() if name != "x-delay"}  # the plugin's, of a past delay
    exchange, routing_key = to.exchange or "", to.routing_key or ""
    if address.retries is not None:
        first = h.first_death(headers)
        failed = headers.get(h.FIRST_FAILED) or (h.timestamp(first) if first else None)
        kept = h.forwarded(
            kept, retries=address.retries, exchange=exchange, routing_key=routing_key, more={h.FIRST_FAILED: failed}
        )
    else:
        kept = h.without_dead_letters(kept)
        for name in (h.DUE, h.TO):
            kept.pop(name, None)
        if to.exchange is not None and h.EXCHANGE not in kept:
            kept |= {h.EXCHANGE: exchange, h.ROUTING_KEY: routing_key}
            if "retries" in kept:
                kept[h.RETRIES] = kept["retries"]
    if "eta" in kept:
        kept["eta"] = None
    return {**kept, **more}


#: How often a message of a quorum queue with RabbitMQ's default delivery limit (20, since 4.0) may be inspected.
MOST_INSPECTIONS = 10
_FILTERED = "for another queue than asked for"


class LeftError(Exception):
    """A message is left where it is; the text is the reason."""


class Copier:
    """Decides which copies replace a message."""

    def __init__(
        self, connection: Connection, source: Source, target: Home | DelayTarget, poison: Queue,
        only: Collection[str] = (),
    ) -> None:  # fmt: skip
        self._connection, self._source, self._target, self._poison = connection, source, target, poison
        self._only = frozenset(only)
        self._exists: dict[str, bool] = {}
        self._has_poison = False
        # Managed queues have no delivery limit.
        self._wears_out = source.name == "celery-native" and capabilities(connection).keeps_delivery_count

    def copies(self, queue: str, message: Message) -> list[Copy]:
        """Return the copies that replace a message of ``queue``. Raises `LeftError`."""
        now = h.epoch_ms()
        found = Waiting(queue, message.delivery_info["routing_key"], message.headers, message.body)
        try:
            address = self._source.address(found, now)
        except NotUnderstoodError as error:
            self._filter(message)
            return [self._poisoned(queue, message, str(error))]
        self._filter(message, *(each.queue for each in address.destinations))
        try:
            return [self._copy(message.headers, address, each, now) for each in address.destinations]
        except CannotHoldError as error:
            if self._is_worn(message):
                return [self._poisoned(queue, message, f"{error}; it cannot be left there any longer")]
            raise LeftError(str(error)) from error

    def _filter(self, message: Message, *queues: str) -> None:
        if self._only and self._only.isdisjoint(queues):
            self.check_inspections(message)
            raise LeftError(_FILTERED)

    def check_inspections(self, message: Message) -> None:
        """Raise `RmqDelayError` if a message was inspected so often that more inspections would lose its delay."""
        if self._is_worn(message):
            raise RmqDelayError(
                f"A message in Celery's levels was inspected {MOST_INSPECTIONS} times or more: after 20 times RabbitMQ "
                "removes it from its level, too early. Move it now: run without --dry-run and --queue."
            )

    def _is_worn(self, message: Message) -> bool:
        return self._wears_out and h.whole_number(message.headers.get("x-delivery-count")) >= MOST_INSPECTIONS

    def _copy(self, raw: dict[str, Any], address: Address, to: Destination, now: int) -> Copy:
        if not self._there(to.queue):
            raise CannotHoldError(f"queue {to.queue!r} does not exist")
        return self._target.copy(raw, address, to, now)

    def poisoned(self, queue: str, message: Message, refused: Copy, reason: str) -> Copy:
        """Return the copy for the poison queue that replaces a copy refused by its queue."""
        return self._poisoned(queue, message, f"for queue {refused.by!r} {reason}; its other queues have it")

    def _poisoned(self, queue: str, message: Message, reason: str) -> Copy:
        more = {
            h.REASON: h.bounded(h.printable(reason), h.MAX_MESSAGE),
            h.QUEUE: queue,
            h.EXCHANGE: message.delivery_info["exchange"],
            h.ROUTING_KEY: message.delivery_info["routing_key"],
        }
        headers = {**h.without_dead_letters(message.headers), **more}
        return Copy(Route("", self._poison.name), headers, "poisoned", reason)

    def prepare(self, copy: Copy) -> None:
        """Declare what a copy's route needs. Blocks."""
        if copy.counted == "moved" and isinstance(self._target, DelayTarget):
            self._target.exact.prepare(self._connection, copy.route)
        elif copy.counted == "poisoned" and not self._has_poison:
            ensure_queue(self._connection, self._poison)
            self._has_poison = True

    def _there(self, queue: str) -> bool:
        if queue not in self._exists:
            self._exists[queue] = ready_counts(self._connection, [queue])[queue] is not None
        return self._exists[queue]
