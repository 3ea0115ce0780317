"""Run parked tasks now: move them from their delay queues back to their origin queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import headers as h
from .broker import capabilities, copy_of
from .exceptions import PublishError, RmqDelayError
from .inventory import applied
from .names import return_key, suspects
from .scan import SCAN_LIMIT, TRACED_SCAN_LIMIT, looks_leave_no_trace, scanning
from .topology.apply import ready_counts

if TYPE_CHECKING:
    import amqp
    from kombu import Connection
    from kombu.message import Message

    from .topology.ladder import LadderPlan
    from .topology.objects import Queue


@dataclass
class Released:
    """What a release came to, by task id. ``failed`` says of each that stayed why.

    ``passed_over`` counts the messages that were looked at and left. ``unseen`` names the delay queues that hold more
    messages than were looked at.
    """

    released: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    not_found: list[str] = field(default_factory=list)
    passed_over: int = 0
    unseen: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return dict(vars(self))


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

    The ones with the given ``task_ids``, or ``everything``; of the tiers of ``delay_ms`` (ms) only, where given; at
    most ``limit``. Each is published with confirm before it leaves its delay queue.

    Looks at ``scan_limit`` messages a delay queue. Those that are passed over in search of ``task_ids`` go back to
    their places. RabbitMQ >= 4.1 flags them as delivered before, so when due they run among the suspects, one at a
    time: there the default is `TRACED_SCAN_LIMIT`, elsewhere `SCAN_LIMIT`.

    Raises `RmqDelayError` when nothing says which messages are meant.
    """
    wanted = set(task_ids)
    if bool(wanted) == everything:
        raise RmqDelayError("Say which tasks: their ids, or --all; not both.")
    if scan_limit is None:
        scan_limit = SCAN_LIMIT if everything or looks_leave_no_trace(capabilities(connection)) else TRACED_SCAN_LIMIT
    run = _Release(connection, wanted, limit, scan_limit)
    for plan in plans:
        ladders = [*plan.ladders.values(), *applied(connection, plan).ladders.values()]
        found = [each for each in plan.rung_queues(ladders) if delay_ms in (None, each[1])]
        counts = ready_counts(connection, [queue.name for _, _, queue in found])
        # From the top: what fails at once parks one rung higher, and is not to be released again.
        for rung, _, queue in sorted(found, key=lambda each: -each[0]):
            if counts[queue.name] and not run.finished:
                run.empty(plan, rung, queue)
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

    def empty(self, plan: LadderPlan, rung: int, queue: Queue) -> None:
        """Move the wanted messages out of one delay queue."""
        with scanning(self._connection, queue.name, self._scan_limit) as scan:
            for message in scan:
                task_id = str(message.headers.get("id") or message.properties.get("correlation_id") or "unknown")
                if not self._wanted or task_id in self._wanted:
                    try:
                        scan.move(message, _copy(plan, message), plan.names.returns, return_key(plan.queue, rung))
                    except PublishError as error:
                        self.result.failed[task_id] = str(error)
                    else:
                        self.result.released.append(task_id)
                else:
                    self.result.passed_over += 1
                if self.finished:
                    return
            if not scan.complete:
                self.result.unseen.append(queue.name)


def _copy(plan: LadderPlan, message: Message) -> amqp.Message:
    """Return the message as it comes back from its rung, its broker-side attempts counted in its headers."""
    raw, queue = message.headers, plan.queue
    exchange, routing_key = h.first_route(raw, queue, "", queue)
    first = h.first_death(raw)
    failed = h.timestamp(first) if first else None
    return copy_of(
        message,
        h.forwarded(
            raw,
            retries=h.whole_number(raw.get("retries")) + h.rejections(raw, queue, suspects(queue)),
            exchange=exchange,
            routing_key=routing_key,
            more={h.FIRST_FAILED: raw.get(h.FIRST_FAILED) or failed},
        ),
    )
