"""The broker of an uninstall: what it has, what can be deleted, how messages return, the options and the report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from kombu import Connection

from ... import headers as h
from ...amqp import apply
from ...amqp.apply import ready_counts
from ...amqp.capabilities import capabilities
from ...amqp.copies import copy_of
from ...amqp.objects import Queue
from ...amqp.scan import scanning
from ...app.inventory import applied, plans
from ...app.state import AppState
from ...commands import command
from ...durations import format_ms, parse_ms
from ...management.client import Management
from ...management.records import Policy, QueueDetail
from ...names import moving, parse_delay_queue, quarantine
from ...settings.values import MOST_LEVELS
from ...topology.applied import Applied
from ...topology.exact.alternatives import Loop, Plugin
from ...topology.exact.base import Options, Topology
from ...topology.exact.levels import Levels
from ...topology.ladder import LadderPlan
from ..deletion import Deleted, Kind, Left, Problem, Runner, delete_queue
from ..migration.address import Address, Destination, Source, Tier, Waiting, tiers_of
from ..migration.mover import Mover
from ..migration.mover import Report as Counts
from ..migration.targets import Copier, Home, stock_headers
from ..results import Result

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
    tiers = tiers_of(plan, ladders)
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


USE_MANAGEMENT = "Use the management API (--management-url), or --no-management to skip this check."
_RELEASE = "Wait (--wait), or put them into their queue now with --release; then run the command again."


@dataclass(frozen=True)
class Request:
    """The options of an uninstall.

    ``only``: these origin queues, and nothing that queues share. ``release``: put waiting messages into their queues
    now, with their due time as eta. ``wait_ms``: how long to wait until they have returned by themselves.
    ``delete_origin``: delete origin queues that were declared with our dead-letter exchange, if they are empty and
    unused. ``discard_events``: delete the events queue even if it is not empty. ``check_hidden``: keep queues whose
    hidden messages are unknown because there is no management API.
    """

    only: tuple[str, ...] = ()
    release: bool = False
    wait_ms: int = 0
    delete_origin: bool = False
    discard_events: bool = False
    dry_run: bool = False
    check_hidden: bool = True


class Broker(Runner):
    """The broker of an uninstall: what it has, and the runner of the steps that change it."""

    def __init__(self, connection: Connection, request: Request, management: Management | None) -> None:
        super().__init__(connection, request.dry_run)
        self.request, self.management = request, management
        self.report = Report(request.dry_run, deleted=self.deleted, left=self.left)
        self.listing = self.listed()

    def listed(self) -> Listing | None:
        """Return what the management API lists now; None without it."""
        return None if self.management is None else Listing.of(self.management)

    def waiting(self, queues: Iterable[str]) -> dict[str, int]:
        """Return the ready messages by queue, of those that have any."""
        return {name: count for name, count in existing(self.connection, [*queues]).items() if count}

    def hidden(self, name: str) -> int | None:
        """Return how many messages of a queue AMQP does not report; None where that is unknown."""
        if self.listing is None:
            return None if self.request.check_hidden else 0
        detail = self.listing.queues.get(name)
        return max(detail.dead_letters_waiting, detail.held or 0) if detail else 0

    def exists(self, exchange: str) -> bool:
        """Return whether an exchange exists."""
        return apply.exchange_exists(self.connection, exchange)

    def empty(self, queues: Iterable[str]) -> bool:
        """Return whether queues in which messages wait can all be deleted; report those that cannot."""
        problems = {name: problem for name in queues if (problem := self._problem(name))}
        for name, problem in problems.items():
            self.leave("queue", name, *problem)
        return not problems

    def _problem(self, name: str) -> Problem | None:
        """Return why a queue cannot be deleted."""
        found = existing(self.connection, [name])
        if not found:
            return None
        if found[name] and not (self.dry and self.request.release):
            tier = parse_delay_queue(name)
            until = f", {format_ms(tier.ttl_ms)} at most" if tier else ""
            return Problem(f"{found[name]} messages wait in it{until}.", _RELEASE)
        hidden = self.hidden(name) if is_quorum(name) else 0
        if hidden is None:
            return Problem("Only the management API reports whether a quorum queue is empty.", USE_MANAGEMENT)
        if hidden:
            return Problem(f"{hidden} messages that were due wait for a target queue.", f"Run `{command('doctor')}`.")
        return None

    def bound(self, exchange: str) -> list[str]:
        """Return the names of what is bound to an exchange; none without the management API."""
        bindings = self.management.bindings() if self.management is not None else {}
        return sorted(destination for source, destination in bindings if source == exchange)

    def delete_queues(self, queues: Collection[str]) -> bool:
        """Delete queues in which messages wait, if none has any; return whether all are gone."""
        return self.empty(queues) and self.run_all(map(delete_queue, queues))


def is_quorum(name: str) -> bool:
    """Return whether the name of a queue in which messages wait is that of a quorum queue."""
    tier = parse_delay_queue(name)
    return tier.queue_type == "quorum" if tier else ".quorum." in name


@dataclass
class Report(Result):
    """The result of an uninstall.

    ``moved`` counts the messages that were put into each queue; in a dry run those that wait, by the queue in which
    they are. ``refused`` is why nothing was done, or would be. ``verified``: the management API has listed the objects.
    """

    dry_run: bool = False
    moved: Counter[str] = field(default_factory=Counter)
    deleted: list[Deleted] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    refused: str | None = None
    verified: bool = False

    def __bool__(self) -> bool:
        """Whether there was anything to do."""
        return bool(self.moved or self.deleted)


def quarantined(queue: str) -> Source:
    """Return the quarantine queue of an origin queue, whose messages are due."""

    def address(found: Waiting, _now_ms: int) -> Address:
        return Address((Destination(queue),), 0, h.retries(found.headers, queue))

    return Source("quarantine", (quarantine(queue),), address)


def send_home(connection: Connection, source: Source, poison: Queue, stopped: Callable[[], bool]) -> Counts:
    """Publish the messages of a source to their queues, each with confirm before it is acked; return the counts."""
    home = Home()
    report = Counts(source.name, home.name)
    Mover(connection, source, Copier(connection, source, home, poison), report, stopped=stopped).run()
    return report


def renew(connection: Connection, queue: str) -> None:
    """Publish each message that a queue has now to that queue again, with its attempts counted.

    Stock Celery publishes a retry to the exchange from which its message came. Raises `PublishError` where a message
    stays as it is.
    """
    count = ready_counts(connection, [queue])[queue]
    if not count:
        return
    with scanning(connection, queue, count) as scan:  # by gets, which are not ahead: the copies are not among them
        for message in scan:
            headers = stock_headers(message.headers)
            if retries := h.retries(message.headers, queue):
                headers["retries"] = retries
            copy = copy_of(message, headers)
            if "expiration" in message.properties:
                copy.properties["expiration"] = message.properties["expiration"]
            scan.move(message, copy, "", queue)
        scan.synchronise()
