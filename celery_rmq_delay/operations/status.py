"""Status: parked, quarantined and exhausted messages by queue and tier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from celery import Celery
from kombu import Connection

from .. import headers as h
from ..amqp.apply import ready_counts
from ..amqp.capabilities import Capabilities, capabilities
from ..amqp.objects import Queue
from ..amqp.scan import inspection_leaves_no_trace, scanning
from ..app.exact import ExactDelays
from ..app.inventory import applied, plans
from ..app.state import AppState, state_of
from ..management.records import QueueDetail
from ..names import quarantine
from ..settings.values import RetryMode
from ..topology.exact.base import Topology
from ..topology.ladder import LadderPlan
from .results import Result


@dataclass(frozen=True)
class EventStatus(Result):
    """The event queue. ``waiting`` counts its unread events; None if the queue does not exist."""

    queue: str
    waiting: int | None


def event_status(connection: Connection, delay: AppState) -> EventStatus | None:
    """Return how many events wait; None if events are off."""
    if not delay.settings.events.on:
        return None
    name = delay.settings.names.events
    return EventStatus(name, ready_counts(connection, [name])[name])


#: Seconds for which counts do not inspect unused exact delays again: pages count every few seconds.
_UNUSED_FOR = 60.0


@dataclass(frozen=True)
class ExactStatus(Result):
    """One topology of the settings. ``waiting`` counts its messages; None if the broker does not report them."""

    topology: str
    unit_ms: int
    waiting: int | None


def exact_status(connection: Connection, exact: ExactDelays) -> list[ExactStatus]:
    """Return how many messages wait in each topology of the settings."""
    return [ExactStatus(each.name, each.unit_ms, _waiting(connection, exact, each)) for each in exact.topologies]


def _waiting(connection: Connection, exact: ExactDelays, topology: Topology) -> int | None:
    holding = topology.holding()
    if not holding:
        return None
    if not exact.in_use(connection, topology, known_for=_UNUSED_FOR):
        return 0
    return sum(count or 0 for count in ready_counts(connection, holding).values())


@dataclass(frozen=True)
class TierStatus(Result):
    """One tier of an origin queue: its delay queues (one, or one per lane) together.

    ``delay_ms`` is the tier's delay in ms, ``parked`` how many messages wait in it. ``oldest_due`` is when the next one
    is due, in UTC: to the second in the first tier, and not before it in higher ones; None if an inspection of the
    message would leave a trace (RabbitMQ >= 4.1) or the message has no time of parking.
    ``due_within_ms`` is the bound that always holds, in ms; None if no message is parked. ``retired``: no ladder in
    force has this tier. ``missing``: delay queues that the broker does not have.
    """

    tier_index: int
    delay_ms: int
    parked: int
    oldest_due: datetime | None
    due_within_ms: int | None
    retired: bool
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class QueueStatus(Result):
    """One origin queue. ``ready`` and ``quarantine`` are counts of messages; None where that queue does not exist.

    ``retry`` is its setting. A ``native`` queue holds its retries itself: its tiers have only the copies. ``held`` is
    how many it holds, ``held_due`` when the next of them is due, as last reported by the management API; None if it was
    not asked, or reported nothing.
    """

    queue: str
    queue_type: str
    ready: int | None
    quarantine: int | None
    tiers: tuple[TierStatus, ...]
    retry: RetryMode = "ladder"
    held: int | None = None
    held_due: datetime | None = None

    @property
    def parked(self) -> int:
        """How many messages wait in all tiers."""
        return sum(tier.parked for tier in self.tiers)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**super().to_json(), "parked": self.parked}


@dataclass(frozen=True)
class Status(Result):
    """All origin queues, and what they share: exact delays, the exhausted queue and the event queue.

    ``exhausted`` counts the messages of that queue; None if it does not exist. ``events`` is None if they are off.
    ``dead_letters`` counts by queue the messages that were due and that no other queue has taken, as last reported by
    the management API; None if it was not asked.
    """

    queues: tuple[QueueStatus, ...]
    exhausted_queue: str
    exhausted: int | None
    exact: tuple[ExactStatus, ...] = ()
    events: EventStatus | None = None
    dead_letters: Mapping[str, int] | None = None

    @property
    def native_retry(self) -> list[QueueStatus]:
        """The queues that hold their retries themselves."""
        return [queue for queue in self.queues if queue.retry == "native"]

    def with_details(self, details: Mapping[str, QueueDetail], dead_letters: Mapping[str, int]) -> Status:
        """Return the status with the management API's facts: retries that queues hold themselves, and dead letters."""
        queues = tuple(_with_held(queue, details.get(queue.queue)) for queue in self.queues)
        return replace(self, queues=queues, dead_letters=dead_letters)


def _with_held(queue: QueueStatus, detail: QueueDetail | None) -> QueueStatus:
    if detail is None or queue.retry != "native":
        return queue
    due = detail.next_due_ms
    held_due = None if due is None else datetime.fromtimestamp(due / 1000, timezone.utc)
    return replace(queue, held=detail.held, held_due=held_due)


def read_status(app: Celery, connection: Connection, only: Iterable[str] = ()) -> Status:
    """Return the state of the app's origin queues (or only of those in ``only``) and of its exhausted queue."""
    delay = state_of(app)
    exhausted = delay.settings.exhausted_queue
    return Status(
        queues=tuple(queue_status(app, connection, only)),
        exhausted_queue=exhausted,
        exhausted=ready_counts(connection, [exhausted])[exhausted],
        exact=tuple(exact_status(connection, delay.exact)),
        events=event_status(connection, delay),
    )


def queue_status(app: Celery, connection: Connection, only: Iterable[str] = ()) -> list[QueueStatus]:
    """Return the state of each origin queue of the app, or only of those in ``only``. Changes nothing.

    Raises `RmqDelayError` if `install` was not called, `TransportError` if the broker is no AMQP broker.
    """
    delay = state_of(app)
    broker = capabilities(connection)
    return [
        _status(connection, plan, broker, "native" if delay.has_native_retry(plan.queue) else "ladder")
        for plan in plans(connection, delay, only)
    ]


def _status(connection: Connection, plan: LadderPlan, broker: Capabilities, retry: RetryMode) -> QueueStatus:
    record = applied(connection, plan)
    in_force = [*plan.ladders.values(), *(each for key, each in record.ladders.items() if key not in record.retired)]
    entered = {queue.name for _, _, queue in plan.delay_queues(in_force)}
    every = plan.delay_queues([*in_force, *record.ladders.values()])
    tiers: dict[tuple[bool, int, int], list[Queue]] = {}
    for tier_index, delay_ms, queue in every:
        tiers.setdefault((queue.name not in entered, tier_index, delay_ms), []).append(queue)
    counts = ready_counts(connection, [plan.queue, quarantine(plan.queue), *(queue.name for _, _, queue in every)])
    inspects = inspection_leaves_no_trace(broker)
    return QueueStatus(
        queue=plan.queue,
        queue_type=plan.queue_type,
        ready=counts[plan.queue],
        quarantine=counts[quarantine(plan.queue)],
        tiers=tuple(_tier(connection, tiers[key], key, counts, inspect=inspects) for key in sorted(tiers)),
        retry=retry,
    )


def _tier(
    connection: Connection, queues: list[Queue], key: tuple[bool, int, int], counts: Mapping[str, int | None], *,
    inspect: bool,
) -> TierStatus:  # fmt: skip
    retired, tier_index, delay_ms = key
    used = [queue for queue in queues if counts[queue.name]]
    dues = [_due(connection, queue) for queue in used] if inspect else []
    return TierStatus(
        tier_index=tier_index,
        delay_ms=delay_ms,
        parked=sum(counts[queue.name] or 0 for queue in queues),
        oldest_due=min((due for due in dues if due), default=None),
        due_within_ms=min((_ttl_ms(queue) for queue in used), default=None),
        retired=retired,
        missing=tuple(queue.name for queue in queues if counts[queue.name] is None),
    )


def _due(connection: Connection, queue: Queue) -> datetime | None:
    """Return the earliest time at which the head of a delay queue is due: its last known death plus the TTL."""
    with scanning(connection, queue.name, most=1, is_delay_queue=True) as scan:
        for message in scan:
            times = [death.get("time") for death in h.deaths(message.headers)]
            known: list[datetime] = [time.replace(tzinfo=timezone.utc) for time in times if isinstance(time, datetime)]
            return max(known) + timedelta(milliseconds=_ttl_ms(queue)) if known else None
    return None


def _ttl_ms(queue: Queue) -> int:
    return int(queue.arguments["x-message-ttl"])
