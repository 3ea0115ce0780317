"""Sources of a migration: the queues that hold messages, and how their addresses are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ...app.inventory import applied, plans
from ...durations import aware_eta
from ...exceptions import RmqDelayError
from ...management.client import Management
from ...topology.exact.alternatives import Hold, Loop
from ...topology.exact.base import Options
from ...topology.exact.levels import Levels
from .. import celery_native_delay
from .address import (
    Address,
    Destination,
    Waiting,
    celery_native_destinations,
    in_celery_native,
    in_hold,
    in_levels,
    in_loop,
    in_tier,
)

if TYPE_CHECKING:
    from kombu import Connection

    from ...app.state import AppState

NAMES = ("celery-native", "levels", "hold", "loop", "plugin", "ladder")


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
    if name == "celery-native":
        return _celery_native(delay)
    if name == "levels":
        return _levels(delay, options)
    if name == "hold":
        return _hold(delay, connection, options, tuple(named), management_url)
    if name == "loop":
        loop = Loop(options)
        return Source(name, (loop.wait, loop.delay), in_loop)
    if name == "ladder":
        return _ladder(delay, connection, retired_only=retired_only)
    raise RmqDelayError(
        "Messages in the plugin's exchange cannot be moved: they are delivered when they are due. Keep the plugin "
        "enabled until then, with exact_delays=['levels', 'plugin'] if you move to levels. The management API shows "
        "how many are left: messages_delayed of the exchange "
        f"{options.names.prefix}.delayed at /api/exchanges."
    )


def _celery_native(delay: AppState) -> Source:
    app = delay.app
    every = list(app.amqp.queues.values())

    @lru_cache(maxsize=1024)
    def destinations(keys: tuple[str, ...]) -> tuple[Destination, ...]:
        return celery_native_destinations(every, keys)

    def address(found: Waiting, now_ms: int) -> Address:
        return in_celery_native(found, now_ms, destinations=destinations, aware=lambda eta: aware_eta(app, eta))

    return Source("celery-native", celery_native_delay.level_names(), address)


def _levels(delay: AppState, options: Options) -> Source:
    levels, known = Levels(options), tuple(delay.app.amqp.queues)
    return Source(
        levels.name,
        reversed(levels.holding()),
        lambda found, now_ms: in_levels(found, now_ms, unit_ms=options.unit_ms, queues=known),
    )


def _hold(
    delay: AppState, connection: Connection, options: Options, named: tuple[str, ...], management_url: str | None
) -> Source:
    prefix, known = options.names.prefix, tuple(delay.app.amqp.queues)
    if not named:
        with Management.of(connection, management_url, delay.settings.management_url) as management:
            named = tuple(sorted(name for name in management.queues() if name.startswith(f"{prefix}.hold.")))
    return Source(Hold.name, named, lambda found, now_ms: in_hold(found, now_ms, prefix=prefix, queues=known))


def _ladder(delay: AppState, connection: Connection, *, retired_only: bool) -> Source:
    """Return the delay queues of the ladders in force and of those still on record."""
    tiers: dict[str, Tier] = {}
    for plan in plans(connection, delay):
        state = applied(connection, plan)
        in_force = {*plan.ladders} | state.in_force
        entered = [*plan.ladders.values(), *(each for key, each in state.ladders.items() if key in in_force)]
        skipped = {queue.name for _, _, queue in plan.delay_queues(entered)} if retired_only else set()
        for tier_index, _, queue in plan.delay_queues([*plan.ladders.values(), *state.ladders.values()]):
            if queue.name not in skipped:
                tiers[queue.name] = Tier(tier_index, plan.queue, int(queue.arguments["x-message-ttl"]))
    return of_tiers(tiers)


class Tier(NamedTuple):
    """A delay queue of a ladder: its tier, its origin queue and its TTL in ms."""

    tier_index: int
    queue: str
    ttl_ms: int


def of_tiers(tiers: Mapping[str, Tier]) -> Source:
    """Return delay queues of ladders, given by name, the highest tier first."""
    return Source(
        "ladder",
        sorted(tiers, key=lambda name: -tiers[name].tier_index),
        lambda found, now_ms: in_tier(found, now_ms, origin=tiers[found.queue].queue, ttl_ms=tiers[found.queue].ttl_ms),
    )
