"""List parked tasks: those in the tiers of their ladders, and those that wait for an exact delay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from .. import headers as h
from ..amqp.apply import ready_counts
from ..amqp.capabilities import capabilities
from ..amqp.scan import inspection_leaves_no_trace, scanning
from ..app.inventory import plans
from ..exceptions import NotUnderstoodError, RmqDelayError
from .migration.address import Address, Waiting, in_tier
from .migration.sources import source
from .release import places, search_limit, task_id_of
from .results import Result

if TYPE_CHECKING:
    from collections.abc import Callable

    from kombu import Connection
    from kombu.message import Message

    from ..app.state import AppState
    from ..topology.ladder import LadderPlan

#: Stands for a tier's delay: selects the tasks that wait for an exact delay.
EXACT: Literal["exact"] = "exact"
_EPOCH = datetime.fromtimestamp(0, timezone.utc)


@dataclass(frozen=True)
class ParkedTask(Result):
    """A parked task. ``tier_index`` and ``delay_ms`` (ms) are those of its tier; None for an exact delay.

    ``attempts`` is how often it ran. ``due`` is when it returns to ``queue`` at the latest, in UTC: exact for an exact
    delay, to the second after a reject; for a published copy, whose time of parking is unknown, the whole delay from
    now. None if its header is no time.
    """

    task_id: str
    task: str | None
    queue: str
    tier_index: int | None
    delay_ms: int | None
    attempts: int
    due: datetime | None

    def to_json(self) -> dict[str, Any]:
        """Return plain data; times in ISO 8601, UTC."""
        return {**super().to_json(), "due": self.due and self.due.isoformat(timespec="milliseconds")}


@dataclass
class ParkedList(Result):
    """The result of `list_parked`. ``complete``: whether all parked messages were inspected.

    ``unlisted`` maps what cannot be listed to the reason. ``marked``: RabbitMQ >= 4.1 has flagged the inspected
    messages as delivered before, so their tasks run one at a time when they are due.
    """

    tasks: list[ParkedTask] = field(default_factory=list)
    complete: bool = True
    unlisted: dict[str, str] = field(default_factory=dict)
    marked: bool = False


@dataclass(frozen=True)
class _Place:
    """A delay queue, and how to read where its messages go, and when."""

    queue: str
    address: Callable[[Waiting, int], Address]
    tier_index: int | None = None
    delay_ms: int | None = None


def list_parked(
    connection: Connection,
    delay: AppState,
    only: Iterable[str] = (),
    *,
    task: str | None = None,
    tier: int | Literal["exact"] | None = None,
    limit: int = 100,
    scan_limit: int | None = None,
    management_url: str | None = None,
) -> ParkedList:
    """Return at most ``limit`` parked tasks, by origin queue, tier and due time; those with exact delays at the end.

    ``only``: of these origin queues. ``task``: of this name. ``tier``: in tiers of this delay (ms), or `EXACT`.

    Inspects ``scan_limit`` messages of each delay queue, as `release`
    does, and requeues them. Raises `RmqDelayError` for an unknown queue.
    """
    planned = plans(connection, delay, only)
    wanted = {plan.queue for plan in planned} if [*only] else None
    found = ParkedList()
    every: list[_Place] = []
    if tier != EXACT:
        every += (each for plan in planned for each in _tiers(connection, plan) if tier in (None, each.delay_ms))
    if tier in (None, EXACT):
        every += _exact_places(connection, delay, found.unlisted, management_url)
    if scan_limit is None:
        scan_limit = search_limit(connection)
    counts = ready_counts(connection, [place.queue for place in every])
    for place in every:
        if counts[place.queue] is None:
            continue
        if len(found.tasks) >= limit:
            found.complete = found.complete and not counts[place.queue]
            continue
        _read(connection, place, found, _Wanted(wanted, task), limit, scan_limit)
    return found


def _tiers(connection: Connection, plan: LadderPlan) -> Iterator[_Place]:
    for each in sorted(places(connection, plan), key=lambda place: (place.tier_index, place.ttl_ms)):
        address = partial(in_tier, origin=plan.queue, ttl_ms=each.ttl_ms)
        yield _Place(each.queue, address, each.tier_index, each.delay_ms)


def _exact_places(
    connection: Connection, delay: AppState, unlisted: dict[str, str], management_url: str | None
) -> Iterator[_Place]:
    exact = delay.exact
    for topology in exact.topologies:
        try:
            found = source(topology.name, delay, connection, exact.options, management_url=management_url)
        except RmqDelayError as error:  # noqa: PERF203 - each may need the management API
            unlisted[topology.name] = str(error)
        else:
            yield from (_Place(queue, found.address) for queue in found.queues)


@dataclass(frozen=True)
class _Wanted:
    queues: set[str] | None
    task: str | None

    def __call__(self, found: ParkedTask) -> bool:
        return (self.queues is None or found.queue in self.queues) and self.task in (None, found.task)


def _read(
    connection: Connection, place: _Place, found: ParkedList, wants: _Wanted, limit: int, scan_limit: int
) -> None:
    tasks: list[ParkedTask] = []
    with scanning(connection, place.queue, scan_limit, is_delay_queue=True) as scan:
        for message in scan:
            tasks += filter(wants, _parked(place, message))
            if len(found.tasks) + len(tasks) >= limit:
                break
        found.complete = found.complete and scan.complete
        found.marked = found.marked or (scan.seen > 0 and not inspection_leaves_no_trace(capabilities(connection)))
    found.tasks += sorted(tasks, key=lambda each: (each.due is None, each.due or _EPOCH))


def _parked(place: _Place, message: Message) -> Iterator[ParkedTask]:
    """Yield the message as a parked task: one for each queue that it goes to, none if it names no queue."""
    waiting = Waiting(place.queue, message.delivery_info["routing_key"], message.headers, message.body)
    try:
        address = place.address(waiting, h.epoch_ms())
    except NotUnderstoodError:
        return
    task = message.headers.get("task")
    for queue in address.destinations:
        yield ParkedTask(
            task_id=task_id_of(message),
            task=None if task is None else str(task),
            queue=queue.queue,
            tier_index=place.tier_index,
            delay_ms=place.delay_ms,
            attempts=h.retries(message.headers, queue.queue),
            due=_moment(address.due_ms),
        )


def _moment(due_ms: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(due_ms / 1000, timezone.utc)
    except (OverflowError, ValueError, OSError):  # of a header that another program has written
        return None
