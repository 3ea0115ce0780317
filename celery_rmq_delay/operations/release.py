"""Run parked tasks now: move them from their delay queues back to their origin queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .. import headers as h
from ..amqp.apply import ready_counts
from ..amqp.capabilities import capabilities
from ..amqp.copies import copy_of
from ..amqp.scan import SCAN_LIMIT, TRACED_SCAN_LIMIT, Scan, inspection_leaves_no_trace, scanning
from ..app.inventory import applied
from ..commands import command
from ..exceptions import PublishError, SelectionError, UnroutableError
from ..names import return_key
from .results import Result

if TYPE_CHECKING:
    import amqp
    from kombu import Connection
    from kombu.message import Message

    from ..topology.ladder import LadderPlan


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
    connection: Connection,
    plans: Iterable[LadderPlan],
    *,
    task_ids: Iterable[str] = (),
    everything: bool = False,
    delay_ms: int | None = None,
    limit: int | None = None,
    scan_limit: int | None = None,
) -> Released:
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
    run.result.not_found = sorted(wanted - set(run.result.released) - set(run.result.failed))
    return run.result


class _Release:
    def __init__(self, connection: Connection, wanted: set[str], limit: int | None, scan_limit: int) -> None:
        self._connection, self._wanted, self._limit, self._scan_limit = connection, wanted, limit, scan_limit
        self.result = Released()

    @property
    def finished(self) -> bool:
        if self._limit is not None and len(self.result.released) + len(self.result.failed) >= self._limit:
            return True
        return bool(self._wanted) and self._wanted <= {*self.result.released, *self.result.failed}

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
                else:
                    self.result.passed_over += 1
                if self.finished:
                    return
            if not scan.complete:
                self.result.unseen.append(place.queue)


def counted_copy(plan: LadderPlan, message: Message, more: h.Headers, exchange: str = "") -> amqp.Message:
    """Return a copy of a message of the plan's queue, with the broker's attempt count in its headers, and ``more``.

    ``exchange``: the exchange that it came from with its routing key, unless it came from a delay queue.
    """
    raw, queue = message.headers, plan.queue
    routing_key = (message.delivery_info or {})["routing_key"] if exchange else queue
    exchange, routing_key = h.first_route(raw, queue, exchange, routing_key)
    first = h.first_death(raw)
    failed = h.timestamp(first) if first else None
    return copy_of(
        message,
        h.forwarded(
            raw,
            retries=h.retries(raw, queue),
            exchange=exchange,
            routing_key=routing_key,
            more={h.FIRST_FAILED: raw.get(h.FIRST_FAILED) or failed, **more},
        ),
    )
