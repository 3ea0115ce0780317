"""An in-memory RabbitMQ whose clock moves only by `VirtualBroker.advance`.

It has the features of RabbitMQ 4.3 that this package and Celery use: queues with TTL, expiry and dead letters, and
quorum queues that delay requeued messages. It has no priorities and no queue limits, and does not check arguments. The
tests of the project run the same tasks here and on a real node.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import amqp
from amqp.exceptions import NotFound
from celery.utils.time import maybe_iso8601

from ..amqp.objects import Binding
from ..headers import DUE
from ..publish.calls import matches_topic


@dataclass
class _Exchange:
    type: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    bindings: dict[Binding, None] = field(default_factory=dict)

    @property
    def routes_by(self) -> str:
        return str(self.arguments.get("x-delayed-type", self.type))


class Exchanges:
    """The exchanges of one vhost. The default exchange leads to every queue by its name."""

    def __init__(self) -> None:
        self._known = {"": _Exchange("direct"), "amq.direct": _Exchange("direct"), "amq.topic": _Exchange("topic")}

    def declare(self, name: str, kind: str, arguments: Mapping[str, Any] | None, *, passive: bool) -> None:
        """Add an exchange; one that exists stays as it is. Raises `NotFound` if a passive one is missing."""
        if passive:
            self._get(name)
        else:
            self._known.setdefault(name, _Exchange(kind, dict(arguments or {})))

    def delete(self, name: str) -> None:
        """Remove an exchange, if it exists."""
        self._known.pop(name, None)

    def bind(self, binding: Binding) -> None:
        """Add a binding. Raises `NotFound` if an exchange is missing."""
        if binding.to == "exchange":
            self._get(binding.destination)
        self._get(binding.source).bindings[binding] = None

    def unbind(self, binding: Binding) -> None:
        """Remove a binding, if it exists."""
        if binding.source in self._known:
            self._known[binding.source].bindings.pop(binding, None)

    def forget_queue(self, queue: str) -> None:
        """Remove the bindings of a deleted queue."""
        for exchange in self._known.values():
            for binding in [each for each in exchange.bindings if (each.to, each.destination) == ("queue", queue)]:
                del exchange.bindings[binding]

    def delays(self, name: str) -> bool:
        """Return whether an exchange delays messages by their header ``x-delay``."""
        return self._get(name).type == "x-delayed-message"

    def route(self, name: str, key: str, headers: Mapping[str, Any]) -> list[str]:
        """Return the queues that a message reaches, each once. Raises `NotFound` if there is no such exchange."""
        self._get(name)
        queues: dict[str, None] = {}
        visited: set[str] = set()
        waiting = [name]
        while waiting:
            current = waiting.pop(0)
            if current in visited or current not in self._known:
                continue
            visited.add(current)
            if not current:
                queues[key] = None
                continue
            exchange = self._known[current]
            taken = [each for each in exchange.bindings if _takes(exchange.routes_by, each, key, headers)]
            queues.update((each.destination, None) for each in taken if each.to == "queue")
            waiting += [each.destination for each in taken if each.to == "exchange"]
            if not taken and (alternate := exchange.arguments.get("alternate-exchange")):
                waiting.append(alternate)
        return list(queues)

    def _get(self, name: str) -> _Exchange:
        if name not in self._known:
            raise NotFound(f"NOT_FOUND - no exchange {name!r}", reply_code=404)
        return self._known[name]


def _takes(kind: str, binding: Binding, key: str, headers: Mapping[str, Any]) -> bool:
    if kind == "direct":
        return binding.key == key
    if kind == "topic":
        return matches_topic(binding.key, key)
    return kind == "fanout" or _headers_match(binding.arguments, headers)


def _headers_match(wanted: dict[str, Any], headers: Mapping[str, Any]) -> bool:
    how = str(wanted.pop("x-match", "all"))
    if not how.endswith("-with-x"):
        wanted = {name: value for name, value in wanted.items() if not name.startswith("x-")}
    found = [name in headers and value in (None, headers[name]) for name, value in wanted.items()]
    return any(found) if how.startswith("any") else all(found)


#: The version whose behaviour is imitated.
VERSION = "4.3.6"
_BASIC_CLASS = 60


@dataclass
class Stored:
    """A message that is ready in a queue, or unacknowledged by a consumer of it."""

    message: amqp.Message
    exchange: str
    key: str
    number: int
    #: When the times in its headers were last adjusted to the clock.
    aged_ms: int
    redelivered: bool = False
    acquired: int = 0
    failed: int = 0

    @property
    def headers(self) -> dict[str, Any]:
        """The headers, to be changed in place."""
        found: dict[str, Any] = self.message.properties.setdefault("application_headers", {})
        return found


@dataclass
class Consumer:
    """A consumer of a queue; ``deliver`` receives its messages."""

    tag: str
    owner: object
    deliver: Callable[[VirtualQueue, Stored], None]


@dataclass
class VirtualQueue:
    """A queue: its arguments, ready messages and consumers."""

    name: str
    arguments: Mapping[str, Any]
    ready: list[Stored] = field(default_factory=list)
    consumers: list[Consumer] = field(default_factory=list)
    leased_until: int = 0


@dataclass
class Timed:
    """An action at a time, unless ``cancelled``."""

    act: Callable[[], object]
    is_due: Callable[[], bool]
    cancelled: bool = False


class VirtualBroker:
    """The queues, the messages and the clock. ``now_ms`` begins at 0."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.exchanges = Exchanges()
        self.queues: dict[str, VirtualQueue] = {}
        self._numbers = itertools.count()
        self._agenda: list[tuple[int, int, Timed]] = []

    def queue(self, name: str) -> VirtualQueue:
        """Return a queue. Raises `NotFound`."""
        found = self.queues.get(name)
        if found is None:
            raise NotFound(f"NOT_FOUND - no queue {name!r}", reply_code=404)
        return found

    def declare_queue(self, name: str, arguments: Mapping[str, Any] | None) -> VirtualQueue:
        """Add a queue; one that exists stays as it is, and renews its lease."""
        found = self.queues.setdefault(name, VirtualQueue(name, dict(arguments or {})))
        if lease := found.arguments.get("x-expires"):
            found.leased_until = self.now_ms + lease
        return found

    def delete_queue(self, name: str) -> int:
        """Remove a queue with its messages; return their number."""
        found = self.queues.pop(name, None)
        self.exchanges.forget_queue(name)
        return len(found.ready) if found else 0

    def publish(self, message: amqp.Message, exchange: str, key: str) -> bool:
        """Route a message; return whether it reached any queue. Raises `NotFound` if there is no such exchange."""
        stored = self._stored(_as_sent(message), exchange, key)
        delay = stored.headers.get("x-delay")
        if exchange and isinstance(delay, int) and self.exchanges.delays(exchange):
            self.at(self.now_ms + delay, lambda: self._route(stored))
            return True
        return self._route(stored)

    def _stored(self, message: amqp.Message, exchange: str, key: str) -> Stored:
        return Stored(message, exchange, key, next(self._numbers), self.now_ms)

    def _route(self, stored: Stored) -> bool:
        names = self.exchanges.route(stored.exchange, stored.key, stored.headers)
        found = [self.queues[name] for name in names if name in self.queues]
        for index, queue in enumerate(found):
            own = stored if not index else self._stored(_as_sent(stored.message), stored.exchange, stored.key)
            self._enter(queue, own)
        return bool(found)

    def _enter(self, queue: VirtualQueue, stored: Stored) -> None:
        queue.ready.append(stored)
        limits = [queue.arguments.get("x-message-ttl"), stored.message.properties.get("expiration")]
        ttls = [int(limit) for limit in limits if limit is not None]
        if ttls:
            self.at(
                self.now_ms + min(ttls),
                lambda: self._dead_letter(queue, stored, "expired"),
                lambda: any(each is stored for each in queue.ready),
            )

    def deliver_next(self, owner: object = None) -> bool:
        """Deliver the oldest ready message to its consumer (one of ``owner``, if set); return whether there was one."""
        waiting = [
            queue
            for queue in self.queues.values()
            if queue.ready and queue.consumers and owner in (None, queue.consumers[0].owner)
        ]
        if not waiting:
            return False
        queue = min(waiting, key=lambda each: each.ready[0].number)
        stored = queue.ready.pop(0)
        self._age(stored)
        stored.acquired += 1
        queue.consumers[0].deliver(queue, stored)
        return True

    def requeue(self, queue: VirtualQueue, stored: Stored, *, failed: bool) -> None:
        """Requeue a message; a quorum queue with delayed retry holds it. ``failed``: it counts as a failure."""
        stored.redelivered = True
        stored.failed += failed
        held = queue.arguments.get("x-delayed-retry-type")
        if held in ("all", "failed" if failed else "returned"):
            first, last = queue.arguments["x-delayed-retry-min"], queue.arguments["x-delayed-retry-max"]
            self.at(self.now_ms + min(first * max(1, stored.failed), last), lambda: queue.ready.append(stored))
        else:
            queue.ready.insert(0, stored)

    def reject(self, queue: VirtualQueue, stored: Stored) -> None:
        """Dead-letter a message that a consumer rejected."""
        stored.failed += 1
        self._dead_letter(queue, stored, "rejected")

    def _dead_letter(self, queue: VirtualQueue, stored: Stored, reason: str) -> None:
        queue.ready = [each for each in queue.ready if each is not stored]
        exchange = queue.arguments.get("x-dead-letter-exchange")
        if exchange is None:
            return
        self._age(stored)
        _write_death(stored, queue.name, reason)
        stored.message.properties.pop("expiration", None)
        stored.exchange, stored.number, stored.redelivered = exchange, next(self._numbers), False
        stored.key = queue.arguments.get("x-dead-letter-routing-key", stored.key)
        try:
            self._route(stored)
        except NotFound:
            return  # as a broker does: it is dropped

    def _age(self, stored: Stored) -> None:
        """Move the times in the headers of a message back: tasks read the computer's clock, which has not moved."""
        passed, stored.aged_ms = self.now_ms - stored.aged_ms, self.now_ms
        if not passed:
            return
        headers = stored.headers
        if isinstance(headers.get(DUE), int):
            headers[DUE] -= passed
        for name in ("expires", "eta"):
            if isinstance(headers.get(name), str):
                moment: Any = maybe_iso8601(headers[name])
                headers[name] = (moment - timedelta(milliseconds=passed)).isoformat()

    def at(self, at_ms: int, act: Callable[[], object], is_due: Callable[[], bool] = lambda: True) -> Timed:
        """Call ``act`` when the clock reaches ``at_ms``, if ``is_due`` is true then."""
        timed = Timed(act, is_due)
        heapq.heappush(self._agenda, (at_ms, next(self._numbers), timed))
        return timed

    def next_ms(self) -> int | None:
        """Return the time of the next action; None if there is none."""
        while self._agenda:
            at_ms, _, timed = self._agenda[0]
            if not timed.cancelled and timed.is_due():
                return at_ms
            heapq.heappop(self._agenda)
        return None

    def advance(self, to_ms: int) -> None:
        """Move the clock, and run the actions that are due by then, in order."""
        while (at_ms := self.next_ms()) is not None and at_ms <= to_ms:
            timed = heapq.heappop(self._agenda)[2]
            self.now_ms = max(self.now_ms, at_ms)
            timed.act()
        self.now_ms = max(self.now_ms, to_ms)
        expired = [name for name, each in self.queues.items() if each.leased_until and self.now_ms > each.leased_until]
        for name in expired:
            if not (self.queues[name].ready or self.queues[name].consumers):
                self.delete_queue(name)


def _as_sent(message: amqp.Message) -> amqp.Message:
    """Return an encoded and decoded copy; raises for values that AMQP cannot encode."""
    sent = amqp.Message(message.body)
    sent._load_properties(_BASIC_CLASS, message._serialize_properties(), 0)
    return sent


def _write_death(stored: Stored, queue: str, reason: str) -> None:
    headers = stored.headers
    deaths: list[dict[str, Any]] = list(headers.get("x-death") or [])
    known = next((each for each in deaths if (each["queue"], each["reason"]) == (queue, reason)), None)
    if known is None:
        now = datetime.now(timezone.utc).replace(tzinfo=None, microsecond=0)
        known = {"count": 0, "reason": reason, "queue": queue, "time": now}
        known |= {"exchange": stored.exchange, "routing-keys": [stored.key]}
    else:
        deaths.remove(known)
    headers["x-death"] = [{**known, "count": known["count"] + 1}, *deaths]
    facts = {"reason": reason, "queue": queue, "exchange": stored.exchange}
    for name, value in facts.items():
        headers.setdefault(f"x-first-death-{name}", value)
        headers[f"x-last-death-{name}"] = value
