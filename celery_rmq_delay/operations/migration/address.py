"""Where messages wait, and where and when each must go: read from its headers, routing key and body.

A due time is milliseconds since the epoch and never too early: if only the time of a message's last hop is known, the
due time assumes the longest remaining delay.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache, partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from kombu import Connection
from kombu.entity import Queue

from ... import headers as h
from ...app.inventory import applied, plans
from ...app.state import AppState
from ...durations import aware_eta, parse_ms
from ...exceptions import NotUnderstoodError, RmqDelayError
from ...ladders import Ladder
from ...management.client import Management
from ...names import digest
from ...publish.calls import matches_topic
from ...topology.exact.alternatives import Loop
from ...topology.exact.base import Options
from ...topology.exact.levels import Levels
from ...topology.ladder import LadderPlan
from .. import celery_native_delay
from ..celery_native_delay import LEVELS, celery_native_bindings

_PREFIX = re.compile(rf"(?:[01]\.){{{LEVELS}}}")
_BITS = re.compile(r"(?:[01]\.)+")
#: What follows the prefix in the name of a queue of `hold`: delay and destination.
_HELD = re.compile(r"((?:[0-9]+(?:\.[0-9]+)?(?:ms|[dhms]))+)\.(.+)", re.DOTALL)
#: The times in ``x-death`` are whole seconds, rounded down.
_RESOLUTION_MS = 1000


class Destination(NamedTuple):
    """A queue, and how Celery would have published to it; None if the message itself specifies it, or if unknown."""

    queue: str
    exchange: str | None = None
    routing_key: str | None = None


@dataclass(frozen=True)
class Address:
    """Where a message must go, and when. ``retries``: its attempts so far, if the broker counted some of them."""

    destinations: tuple[Destination, ...]
    due_ms: int
    retries: int | None = None


class Waiting(NamedTuple):
    """A waiting message: its queue, the routing key with which it arrived, its headers and body bytes."""

    queue: str
    routing_key: str
    headers: Mapping[str, Any]
    body: bytes = b""


def from_headers(headers: Mapping[str, Any]) -> Address | None:
    """Return the address in the headers of an exact delay; None if they have none."""
    found = h.exact_address(headers)
    return Address((Destination(found[0]),), found[1]) if found else None


def in_levels(found: Waiting, now_ms: int, *, unit_ms: int, queues: Iterable[str]) -> Address:
    """Return the address of a message in one of our levels, called ``<...>.<number>``, by its headers or its key.

    ``queues`` may have names too long for a routing key, which then has their digest.
    """
    if known := from_headers(found.headers):
        return known
    word, *bits = found.routing_key.split(".")
    number = found.queue.rpartition(".")[2]
    if not word or not number.isdecimal() or not {*bits} <= {"0", "1"} or len(bits) <= int(number):
        raise NotUnderstoodError(f"no {h.DUE} and {h.TO}, and {found.routing_key!r} is not the routing key of a level")
    queue = next((name for name in queues if word == f"%{digest(name)}"), None)
    left = sum(1 << place for place in range(int(number) + 1) if bits[place] == "1")
    return Address((Destination(queue or unquote(word)),), _entered(found.headers, now_ms) + left * unit_ms)


def in_hold(found: Waiting, now_ms: int, *, prefix: str, queues: Iterable[str]) -> Address:
    """Return the address of a message in ``<prefix>.hold.<delay>.<queue>``, by its headers or that name."""
    if known := from_headers(found.headers):
        return known
    match = _HELD.fullmatch(found.queue.removeprefix(f"{prefix}.hold."))
    if match is None:
        raise NotUnderstoodError(f"no {h.DUE} and {h.TO}, and {found.queue!r} is not the name of a hold queue")
    queue = next((each for each in queues if digest(each) == match[2]), match[2])
    return Address((Destination(queue),), now_ms + parse_ms(match[1], found.queue))


def in_loop(found: Waiting, _now_ms: int) -> Address:
    """Return the address of a message in a loop; only its headers have it."""
    if known := from_headers(found.headers):
        return known
    due, queue = found.headers.get(h.DUE), found.headers.get(h.TO)
    raise NotUnderstoodError(f"{h.DUE}={due!r}, {h.TO}={queue!r}")


def in_tier(found: Waiting, now_ms: int, *, origin: str, ttl_ms: int) -> Address:
    """Return the address of a message in a delay queue of a ladder: due one TTL after its rejection."""
    retries = h.retries(found.headers, origin)
    exchange, key = h.first_route(found.headers, origin, "", origin)
    due = min(_entered(found.headers, now_ms) + ttl_ms, now_ms + ttl_ms)
    return Address((Destination(origin, exchange, key),), due, retries)


def in_celery_native(
    found: Waiting, now_ms: int, *, destinations: Callable[[tuple[str, ...]], tuple[Destination, ...]],
    aware: Callable[[object], datetime],
) -> Address:  # fmt: skip
    """Return the address of a message in one of Celery's levels.

    ``destinations`` is `celery_native_destinations` of the app's queues. ``aware`` reads an eta.
    """
    keys = original_keys(found.routing_key)
    if not keys:
        raise NotUnderstoodError(f"the routing key {found.routing_key!r} does not begin with {LEVELS} bits")
    targets = destinations(keys)
    if not targets:
        raise NotUnderstoodError(
            f"no queue of the app takes the routing key {keys[0]!r} from an exchange that is not direct"
        )
    due = _eta_ms(found, aware)
    return Address(targets, _celery_native_due(found, now_ms) if due is None else due)


def original_keys(key: str) -> tuple[str, ...]:
    """Return the possible routing keys before Celery's levels added their bits, the likeliest first.

    Older kombu versions prepend the bits of each retry to those of the previous one; a delay of 2**28 s or more has
    more than 28 bits.
    """
    found: list[str] = []
    while match := _PREFIX.match(key):
        key = key[match.end() :]
        found.append(key)
    found.reverse()
    if found and (match := _BITS.match(found[0])):
        found.append(found[0][match.end() :])
    return tuple(each for each in found if each)


def celery_native_destinations(queues: list[Queue], keys: Iterable[str]) -> tuple[Destination, ...]:
    """Return the queues bound to a non-direct exchange with the first of ``keys`` that matches any queue.

    If no binding matches a key as it is, queues match whose key is its suffix: Celery binds with ``#.<key>``.
    """
    bindings = [(queue.name, exchange, key) for queue in queues for exchange, key in celery_native_bindings(queue)]
    for pattern in ("{}", "#.{}"):
        for key in keys:
            found: dict[str, Destination] = {}
            for _, exchange, bound in bindings:
                if not _takes(exchange.type, pattern.format(bound), key):
                    continue
                for name, other, wanted in bindings:
                    fanned = exchange.type == "fanout" or _takes(other.type, pattern.format(wanted), key)
                    if other.name == exchange.name and fanned:
                        found.setdefault(name, Destination(name, exchange.name, key))
            if found:
                return tuple(found.values())
    return ()


def _takes(kind: str, pattern: str, key: str) -> bool:
    return matches_topic(pattern, key) if kind == "topic" else pattern.removeprefix("#.") == key


def _eta_ms(found: Waiting, aware: Callable[[object], datetime]) -> int | None:
    eta = found.headers.get("eta")
    if "id" not in found.headers and eta is None:
        eta = _eta_of_protocol_1(found.body)
    if eta is None:
        return None
    try:
        return math.ceil(round(aware(eta).timestamp() * 1000, 3))
    except (RmqDelayError, OverflowError, ValueError):
        return None


def _eta_of_protocol_1(body: bytes) -> object:
    """Return the eta in a JSON body of Celery's message protocol 1; None for other serializers."""
    try:
        facts = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return facts.get("eta") if isinstance(facts, dict) else None


def _celery_native_due(found: Waiting, now_ms: int) -> int:
    number = found.queue.rpartition("_")[2]
    bits = found.routing_key.split(".")[:LEVELS]
    lowest = int(number) if number.isdecimal() else LEVELS - 1
    left = sum(1 << place for place in range(min(lowest + 1, LEVELS)) if bits[LEVELS - 1 - place] == "1")
    return _entered(found.headers, now_ms) + left * 1000


def _entered(headers: Mapping[str, Any], now_ms: int) -> int:
    """Return the latest time at which a message can have entered its queue: that of its newest death, or now.

    If a message died in the same queue again, the broker keeps the time of the first death.
    """
    deaths = h.deaths(headers)
    died = deaths[0].get("time") if deaths and deaths[0].get("count") == 1 else None
    if isinstance(died, datetime):
        return min(now_ms, int(died.replace(tzinfo=timezone.utc).timestamp()) * 1000 + _RESOLUTION_MS)
    return now_ms


SOURCES = ("celery-native", "levels", "hold", "loop", "plugin", "ladder")


class Source:
    """Queues in which messages wait, and a function that reads their addresses, which raises `NotUnderstoodError`.

    ``name`` is that on the command line. ``queues`` are in the order in which messages pass them, so that none is
    missed while they are emptied.
    """

    def __init__(self, name: str, queues: Iterable[str], address: Callable[[Waiting, int], Address]) -> None:
        self.name, self.queues, self.address = name, tuple(queues), address


def source(
    name: str, delay: AppState, connection: Connection, options: Options, *, retired_only: bool = False,
    named: Iterable[str] = (), management_url: str | None = None,
) -> Source:  # fmt: skip
    """Return a source by its name.

    ``options`` are those with which its objects were declared. ``named`` are the queues of `hold`; if empty, the
    management API lists them. ``retired_only``: only delay queues that no ladder in force has. Raises `RmqDelayError`.
    """
    prefix, known = options.names.prefix, tuple(delay.app.amqp.queues)
    if name == "celery-native":
        return Source(name, celery_native_delay.level_names(), _celery_native(delay))
    if name == "levels":
        queues = reversed(Levels(options).holding())
        return Source(name, queues, partial(in_levels, unit_ms=options.unit_ms, queues=known))
    if name == "hold":
        named = tuple(named) or _hold_queues(delay, connection, prefix, management_url)
        return Source(name, named, partial(in_hold, prefix=prefix, queues=known))
    if name == "loop":
        loop = Loop(options)
        return Source(name, (loop.wait, loop.delay), in_loop)
    if name == "ladder":
        return _ladder(delay, connection, retired_only=retired_only)
    raise RmqDelayError(
        "Messages in the plugin's exchange cannot be moved: they are delivered when they are due. Keep the plugin "
        "enabled until then, with exact_delays=['levels', 'plugin'] if you move to levels. The management API shows "
        f"how many are left: messages_delayed of the exchange {prefix}.delayed at /api/exchanges."
    )


def _celery_native(delay: AppState) -> Callable[[Waiting, int], Address]:
    app, every = delay.app, list(delay.app.amqp.queues.values())

    @lru_cache(maxsize=1024)
    def destinations(keys: tuple[str, ...]) -> tuple[Destination, ...]:
        return celery_native_destinations(every, keys)

    return partial(in_celery_native, destinations=destinations, aware=partial(aware_eta, app))


def _hold_queues(delay: AppState, connection: Connection, prefix: str, url: str | None) -> list[str]:
    with Management.of(connection, url, delay.settings.management_url) as management:
        return sorted(name for name in management.queues() if name.startswith(f"{prefix}.hold."))


def _ladder(delay: AppState, connection: Connection, *, retired_only: bool) -> Source:
    """Return the delay queues of the ladders in force and of those still on record."""
    tiers: dict[str, Tier] = {}
    for plan in plans(connection, delay):
        state = applied(connection, plan)
        in_force = {*plan.ladders} | state.in_force
        entered = [*plan.ladders.values(), *(each for key, each in state.ladders.items() if key in in_force)]
        skipped = {queue.name for _, _, queue in plan.delay_queues(entered)} if retired_only else set()
        found = tiers_of(plan, [*plan.ladders.values(), *state.ladders.values()])
        tiers |= {name: tier for name, tier in found.items() if name not in skipped}
    return of_tiers(tiers)


class Tier(NamedTuple):
    """A delay queue of a ladder: its tier, its origin queue and its TTL in ms."""

    tier_index: int
    queue: str
    ttl_ms: int


def tiers_of(plan: LadderPlan, ladders: Iterable[Ladder]) -> dict[str, Tier]:
    """Return the delay queues of ladders of a queue, by name."""
    return {
        queue.name: Tier(tier_index, plan.queue, int(queue.arguments["x-message-ttl"]))
        for tier_index, _, queue in plan.delay_queues(ladders)
    }


def of_tiers(tiers: Mapping[str, Tier]) -> Source:
    """Return delay queues of ladders, given by name, the highest tier first."""

    def address(found: Waiting, now_ms: int) -> Address:
        tier = tiers[found.queue]
        return in_tier(found, now_ms, origin=tier.queue, ttl_ms=tier.ttl_ms)

    return Source("ladder", sorted(tiers, key=lambda name: -tiers[name].tier_index), address)
