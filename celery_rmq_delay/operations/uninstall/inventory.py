"""The objects that may exist: from the settings, from the records, and from the list of the management API."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...amqp.apply import ready_counts
from ...amqp.capabilities import capabilities
from ...app.inventory import applied, plans
from ...durations import parse_ms
from ...names import moving, parse_delay_queue, quarantine
from ...settings.values import MOST_LEVELS
from ...topology.exact.alternatives import Loop, Plugin
from ...topology.exact.base import Options, Topology
from ...topology.exact.levels import Levels
from ..migration.sources import Tier
from ..steps import Kind

if TYPE_CHECKING:
    from kombu import Connection

    from ...app.state import AppState
    from ...management.client import Management
    from ...management.records import Policy, QueueDetail
    from ...topology.applied import Applied
    from ...topology.ladder import LadderPlan

_EXACT = re.compile(r"(levels|loop)\.([0-9a-z.]+)\.(classic|quorum)\.(?:due(\..+)|[a-z0-9]+)", re.DOTALL)


@dataclass(frozen=True)
class Listing:
    """All queues, exchanges (with the messages that each holds) and policies of the vhost."""

    queues: Mapping[str, QueueDetail] = field(default_factory=dict)
    exchanges: Mapping[str, int] = field(default_factory=dict)
    policies: tuple[Policy, ...] = ()

    @classmethod
    def of(cls, management: Management) -> Listing:
        """Read the lists."""
        return cls(management.queues(), management.exchanges(), tuple(management.policies()))

    def ours(self, prefix: str) -> Iterator[tuple[Kind, str]]:
        """Return (kind, name) of every object of this package with a prefix."""
        start = f"{prefix}."
        yield from (("queue", name) for name, detail in self.queues.items() if detail.belongs_to(prefix))
        yield from (("exchange", name) for name in self.exchanges if name.startswith(start))
        yield from (("policy", each.name) for each in self.policies if each.name.startswith(start))


@dataclass(frozen=True)
class Origin:
    """The objects of one origin queue. ``exchanges``: those that lead to its ladders, the first one first."""

    plan: LadderPlan
    applied: Applied
    tiers: Mapping[str, Tier]
    exchanges: tuple[str, ...]

    @property
    def highest_tier(self) -> int:
        """The highest tier from which messages may return."""
        return max(tier.tier_index for tier in self.tiers.values())

    def objects(self) -> Iterator[tuple[Kind, str]]:
        """Yield (kind, name) of all objects of the queue, except the queue itself."""
        names, queue = self.plan.names, self.plan.queue
        record = names.record(queue)
        yield from (("queue", name) for name in (*self.tiers, quarantine(queue), record, moving(record)))
        yield from (("exchange", name) for name in (*self.exchanges, names.dlx(queue), names.other(queue)))
        yield "policy", names.policy(queue)


def origins(connection: Connection, delay: AppState, only: tuple[str, ...], listing: Listing | None) -> list[Origin]:
    """Return the origin queues of the app, or those in ``only``; without ``only`` also others that have objects."""
    found = plans(connection, delay, only)
    if listing is not None and not only:
        routing = capabilities(connection).reports_death_reason
        known = {plan.queue for plan in found}
        for queue in sorted({*_unknown(listing, delay.settings.prefix)} - known):
            if delay.settings.for_queue(queue) is not None:
                found.append(delay.plan(queue, reason_routing=routing, tasks=False))
    return [_origin(connection, plan, listing) for plan in found]


def _unknown(listing: Listing, prefix: str) -> Iterator[str]:
    """Return the names of the origin queues of all objects."""
    start = f"{prefix}."
    for kind, name in listing.ours(prefix):
        tier = parse_delay_queue(name) if kind == "queue" else None
        end = {"queue": ".record", "exchange": ".dlx"}.get(kind, "")
        if tier is not None:
            yield tier.queue
        elif end and name.startswith(start) and name.endswith(end):
            yield name[len(start) : -len(end)]


def _origin(connection: Connection, plan: LadderPlan, listing: Listing | None) -> Origin:
    state = applied(connection, plan)
    ladders = [*{**state.ladders, **plan.ladders}.values()]
    tiers = {
        queue.name: Tier(tier_index, plan.queue, int(queue.arguments["x-message-ttl"]))
        for tier_index, _, queue in plan.delay_queues(ladders)
    }
    names, queue = plan.names, plan.queue
    exchanges = [names.tasks(queue), names.active(queue), names.standby(queue)]
    exchanges += [each.name for ladder in ladders for each in plan.ladder_objects(ladder, 0).exchanges]
    if listing is not None:
        for name in listing.queues:
            tier = parse_delay_queue(name)
            if tier and (tier.queue, tier.prefix) == (queue, names.prefix):
                tiers.setdefault(name, Tier(tier.tier_index, queue, tier.ttl_ms))
        start = re.escape(f"{names.prefix}.{queue}.")
        ladder = re.compile(rf"{start}(ladder\.[0-9a-f]{{8}}(\.first|\.\d+(\.lane0)?)?|applied\.[0-9a-f]{{16}})")
        exchanges += [name for name in listing.exchanges if ladder.fullmatch(name)]
    return Origin(plan, state, tiers, tuple(dict.fromkeys(exchanges)))


@dataclass(frozen=True)
class Exact:
    """The exact delays of all units and types that are known.

    ``dues``: the due queues of quorum levels. ``hold``: the queues of `hold` (None: not listed).
    """

    options: tuple[Options, ...]
    dues: tuple[str, ...]
    hold: tuple[str, ...] | None

    @property
    def levels(self) -> list[Levels]:
        """Each `levels` that may exist."""
        return [Levels(each) for each in self.options]

    def dues_of(self, queue: str) -> list[str]:
        """Return the due queues of one queue that may exist."""
        return [due for each in self.levels if (due := each.due(queue))]

    @property
    def loops(self) -> list[Loop]:
        """Each `loop` that may exist."""
        return [Loop(each) for each in self.options]

    def objects(self) -> Iterator[tuple[Kind, str]]:
        """Yield (kind, name) of all their objects, and of those by which messages return."""
        names = self.options[0].names
        topologies: list[Topology] = [*self.levels, *self.loops, Plugin(self.options[0])]
        for shared in (each.frame() for each in topologies):
            yield from (("queue", each.name) for each in shared.queues)
            yield from (("exchange", each.name) for each in shared.exchanges)
        yield from (("queue", name) for name in (*self.dues, *(self.hold or ())))
        yield "exchange", names.returns


def exact(delay: AppState, listing: Listing | None) -> Exact:
    """Return the exact delays of the settings, and those of the list."""
    base = replace(delay.exact.options, levels=MOST_LEVELS)
    managed = [name for name in delay.app.amqp.queues if delay.settings.for_queue(name) is not None]
    dues = {due for name in managed if (due := Levels(base).due(name))}
    if listing is None:
        return Exact((base,), tuple(sorted(dues)), None)
    found, start = {(base.unit_ms, base.queue_type): base}, f"{delay.settings.prefix}."
    for name in (*listing.queues, *listing.exchanges):
        match = _EXACT.fullmatch(name.removeprefix(start)) if name.startswith(start) else None
        if match is not None:
            unit_ms, kind = parse_ms(match[2], name), match[3]
            found[unit_ms, kind] = replace(base, unit_ms=unit_ms, queue_type=kind)  # type: ignore[arg-type,index]
            target = listing.queues[name].target if match[4] and name in listing.queues else None
            if target is not None and delay.settings.for_queue(target) is not None:
                dues.add(name)
    hold = tuple(sorted(name for name in listing.queues if name.startswith(f"{start}hold.")))
    return Exact(tuple(found.values()), tuple(sorted(dues)), hold)


def existing(connection: Connection, queues: list[str]) -> dict[str, int]:
    """Return the number of ready messages by queue, of those that exist."""
    return {name: count for name, count in ready_counts(connection, queues).items() if count is not None}
