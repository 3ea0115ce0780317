"""Parked tasks: list them, and run them now by moving them from their delay queues back to their origin queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import Literal

from kombu import Connection
from kombu.message import Message

from .. import headers as h
from ..amqp.apply import ready_counts
from ..amqp.capabilities import capabilities
from ..amqp.scan import SCAN_LIMIT, TRACED_SCAN_LIMIT, Scan, inspection_leaves_no_trace, scanning
from ..app.inventory import applied, plans
from ..app.state import AppState
from ..commands import command
from ..exceptions import NotUnderstoodError, PublishError, RmqDelayError, SelectionError, UnroutableError
from ..names import return_key
from ..topology.ladder import LadderPlan
from .deletion import counted_copy
from .migration.address import Address, Waiting, in_tier, source
from .results import Result


@dataclass(frozen=True)
class Place:
    """A delay queue of an origin queue, and how its messages return.

    ``delay_ms`` is the tier's delay, ``ttl_ms`` that of the queue, which differs with jitter; in ms.
    """

    plan: LadderPlan
    tier_index: int
    delay_ms: int
    queue: str
    ttl_ms: int

    def send_home(self, scan: Scan, message: Message) -> None:
        """Move a message to the queue that it would return to when due, with its attempt count.

        Raises `PublishError` if that queue no longer exists or the broker does not accept it; it then stays parked.
        """
        queue, exchange, key = self.plan.queue, self.plan.names.returns, return_key(self.plan.queue, self.tier_index)
        if not scan.bind(queue, exchange, key):  # else it would be exhausted
            raise UnroutableError(f"No queue takes messages for {queue!r}: run `{command('apply')}`.")
        scan.move(message, counted_copy(self.plan, message, {}), exchange, key)


def places(connection: Connection, plan: LadderPlan) -> list[Place]:
    """Return the delay queues of all ladders of a queue, planned and applied, the highest tier first.

    A released task that fails at once parks one tier higher, and must not be released again.
    """
    ladders = [*plan.ladders.values(), *applied(connection, plan).ladders.values()]
    found = [
        Place(plan, tier_index, delay_ms, queue.name, queue.arguments["x-message-ttl"])
        for tier_index, delay_ms, queue in plan.delay_queues(ladders)
    ]
    return sorted(found, key=lambda place: -place.tier_index)


def search_limit(connection: Connection) -> int:
    """Return how many messages of a delay queue a search for task ids may inspect."""
    return SCAN_LIMIT if inspection_leaves_no_trace(capabilities(connection)) else TRACED_SCAN_LIMIT


def task_id_of(message: Message) -> str:
    """Return the task id of a message."""
    return str(h.task_id(message.headers, message.properties) or "unknown")


@dataclass
class Released(Result):
    """The result of a release, by task id. ``failed`` maps each task that stayed to the reason.

    ``passed_over`` counts the messages that were inspected and left. ``unseen`` names the delay queues that hold more
    messages than were inspected.
    """

    released: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    not_found: list[str] = field(default_factory=list)
    passed_over: int = 0
    unseen: list[str] = field(default_factory=list)


def release(
    connection: Connection, plans: Iterable[LadderPlan], *, task_ids: Iterable[str] = (), everything: bool = False,
    delay_ms: int | None = None, limit: int | None = None, scan_limit: int | None = None,
) -> Released:  # fmt: skip
    """Move parked messages to the queues that they would return to when due; they keep their attempt count.

    Selects the messages with the given ``task_ids``, or ``everything``; only in tiers of ``delay_ms`` (ms) if set; at
    most ``limit``. Each is published with confirm before it leaves its delay queue.

    Inspects ``scan_limit`` messages per delay queue. Those that a search for ``task_ids`` passes over return to their
    places. RabbitMQ >= 4.1 flags them as delivered before: when due they run from the quarantine queue, one at a time;
    there the default is `TRACED_SCAN_LIMIT`, elsewhere `SCAN_LIMIT`.

    Raises `SelectionError` unless exactly one of ``task_ids`` and ``everything`` is set.
    """
    wanted = set(task_ids)
    if wanted and everything:
        raise SelectionError("Task ids and --all exclude each other: leave one out.")
    if not (wanted or everything):
        raise SelectionError("No tasks selected: use task ids (see `parked list`), or --all with --queue.")
    if scan_limit is None:
        scan_limit = SCAN_LIMIT if everything else search_limit(connection)
    run = _Release(connection, wanted, limit, scan_limit)
    for plan in plans:
        found = [place for place in places(connection, plan) if delay_ms in (None, place.delay_ms)]
        counts = ready_counts(connection, [place.queue for place in found])
        for place in found:
            if counts[place.queue] is not None and not run.finished:  # an empty one may hold expired messages
                run.empty(place)
    run.result.not_found = sorted(run.missing)
    return run.result


class _Release:
    def __init__(self, connection: Connection, wanted: set[str], limit: int | None, scan_limit: int) -> None:
        self._connection, self._wanted, self._limit, self._scan_limit = connection, wanted, limit, scan_limit
        self.missing, self.result = set(wanted), Released()

    @property
    def finished(self) -> bool:
        if self._limit is not None and len(self.result.released) + len(self.result.failed) >= self._limit:
            return True
        return bool(self._wanted) and not self.missing

    def empty(self, place: Place) -> None:
        """Move the wanted messages out of one delay queue."""
        with scanning(self._connection, place.queue, self._scan_limit, is_delay_queue=True) as scan:
            for message in scan:
                task_id = task_id_of(message)
                if not self._wanted or task_id in self._wanted:
                    try:
                        place.send_home(scan, message)
                    except PublishError as error:
                        self.result.failed[task_id] = str(error)
                    else:
                        self.result.released.append(task_id)
                    self.missing.discard(task_id)
                else:
                    self.result.passed_over += 1
                if self.finished:
                    return
            if not scan.complete:
                self.result.unseen.append(place.queue)


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

    timespec = "milliseconds"

    task_id: str
    task: str | None
    queue: str
    tier_index: int | None
    delay_ms: int | None
    attempts: int
    due: datetime | None


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
    connection: Connection, delay: AppState, only: Iterable[str] = (), *, task: str | None = None,
    tier: int | Literal["exact"] | None = None, limit: int = 100, scan_limit: int | None = None,
    management_url: str | None = None,
) -> ParkedList:  # fmt: skip
    """Return at most ``limit`` parked tasks, by origin queue, tier and due time; those with exact delays at the end.

    ``only``: of these origin queues. ``task``: of this name. ``tier``: in tiers of this delay (ms), or `EXACT`.

    Inspects ``scan_limit`` messages of each delay queue, as `release`
    does, and requeues them. Raises `RmqDelayError` for an unknown queue.
    """
    planned = plans(connection, delay, only)
    wanted = {plan.queue for plan in planned} if [*only] else None

    def wants(each: ParkedTask) -> bool:
        return (wanted is None or each.queue in wanted) and task in (None, each.task)

    found = ParkedList()
    every: list[_Place] = []
    if tier != EXACT:
        every += (each for plan in planned for each in _tiers(connection, plan) if tier in (None, each.delay_ms))
    if tier in (None, EXACT):
        every += _exact_places(connection, delay, found.unlisted, management_url)
    scan_limit = search_limit(connection) if scan_limit is None else scan_limit
    counts = ready_counts(connection, [place.queue for place in every])
    for place in every:
        if counts[place.queue] is None:
            continue
        if len(found.tasks) >= limit:
            found.complete = found.complete and not counts[place.queue]
            continue
        _read(connection, place, found, wants, limit, scan_limit)
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


def _read(
    connection: Connection, place: _Place, found: ParkedList, wants: Callable[[ParkedTask], bool], limit: int,
    scan_limit: int,
) -> None:  # fmt: skip
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
