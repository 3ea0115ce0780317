"""Requeue: claim, publish with confirm, store the outcomes. Each step is committed before the next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import amqp
from django.db.models import F, QuerySet
from django.db.models.functions import Length

from ..... import headers as h
from .....events.schema import REQUEUED
from .....exceptions import RmqDelayError
from .....operations.approval import objection, report_failed
from .....signals import before_requeue
from ...broker import BROKER_ERRORS, broker_down, problem_at
from ...messages import StoredMessage, for_requeue, headers_of
from ...models import OperationItem, Payload, TaskRecord, TaskState
from ...transactions import committed
from .. import clock
from .claims import add_to_history, by_generation, claim, lock
from .lease import Outcome, Run, Settled, Work
from .publishing import Publisher, Sent

if TYPE_CHECKING:
    from kombu import Connection

#: The most bytes of bodies that are published at a time.
MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Edited:
    """The edited body and headers that are published in place of the stored ones."""

    body: bytes
    headers: Mapping[str, str]


class Requeue(Work):
    """Sends exhausted tasks back to their origin queues.

    A row is REQUEUING from before its message is published until its outcome is stored. Where a runner died in between,
    the message may have been published or not, and the row becomes UNKNOWN.

    Of the operation's details, ``into_queue`` is another queue for all tasks, and ``without_expiry`` removes the header
    ``expires``.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._edited: Mapping[int, Edited] = run.edited
        self._publisher = Publisher(run.link)
        self.window = self._publisher.window
        details = run.lease.operation.details
        self._without_expiry, self._queue = bool(details.get("without_expiry")), str(details.get("into_queue", ""))
        self._is_checked = not self._queue

    def resume(self) -> None:
        """Settle the tasks that a dead runner left unfinished."""
        committed(self._settle_orphans)

    def do(self, items: Sequence[OperationItem]) -> None:
        """Requeue these tasks. Raises `BrokerDownError`, and `RmqDelayError` where the given queue does not exist."""
        self._check_queue(self._publisher.ready())
        items = _affordable(items)
        won = committed(lambda: self._claim(items))
        ready = self._ready(won)
        sent = self._publish({key: (message, self._queue or won[key].queue) for key, (message, _) in ready.items()})
        self.window = self._publisher.window
        committed(lambda: self._settle(items, won, {key: number for key, (_, number) in ready.items()}, sent))

    def _publish(self, messages: Mapping[int, tuple[amqp.Message, str]]) -> dict[int, Sent]:
        kept = dict[int, Sent]()
        for key, asked in messages.items():
            if reason := objection(*asked):
                kept[key] = Sent(Outcome.FAILED, reason)
            if before_requeue.receivers:  # which may take long: another process takes over without a heartbeat
                committed(self._lease.check)
        allowed = [(key, *each) for key, each in messages.items() if key not in kept]
        sent = self._publisher.publish(allowed) if allowed else {}
        for key, each in sent.items():
            if each.outcome in (Outcome.FAILED, Outcome.PENDING):
                report_failed(*messages[key])
        return kept | sent

    def _check_queue(self, connection: Connection) -> None:
        if self._is_checked:
            return
        try:
            problem = problem_at(connection, self._queue)
        except BROKER_ERRORS as error:
            raise broker_down(error) from error
        if problem:
            raise RmqDelayError(problem)
        self._is_checked = True

    def _claim(self, items: Sequence[OperationItem]) -> dict[int, TaskRecord]:
        self._lease.beat()  # the first statement has to be a write: SQLite cannot upgrade a read transaction
        barred = _barred(items, may_expire=self._without_expiry)
        won, skipped = claim(self._lease.operation, items, [TaskState.EXHAUSTED], TaskState.REQUEUING, barred=barred)
        self._lease.settle(skipped)
        return won

    def _ready(self, won: Mapping[int, TaskRecord]) -> dict[int, tuple[amqp.Message, int]]:
        ready = {}
        for payload in committed(lambda: list(Payload.objects.filter(record__in=list(won)))):
            key, edited = payload.record_id, self._edited.get(payload.record_id)
            kept = StoredMessage(bytes(payload.body), bytes(payload.headers), payload.properties)
            generation = next_generation(won[key].generation, payload.generation)
            named: dict[str, object] = {h.GENERATION: generation, h.LIFE: won[key].life}
            if self._without_expiry:
                named["expires"] = None
            changed = {**named, **(edited.headers if edited else {})}
            ready[key] = for_requeue(kept, edited.body if edited else None, **changed), generation
        return {key: ready[key] for key in won if key in ready}

    def _settle(
        self,
        items: Sequence[OperationItem],
        won: Mapping[int, TaskRecord],
        generations: Mapping[int, int],
        sent: Mapping[int, Sent],
    ) -> None:
        missing = Sent(Outcome.FAILED, "its message is not in the database")
        known = {item: sent.get(item.record_id, missing) for item in items if item.record_id in won}
        settled = [Settled(item, each.outcome, each.reason) for item, each in known.items()]
        self._lease.settle(each for each in settled if each.outcome != Outcome.PENDING)
        lock(won)
        keys: dict[str, list[int]] = defaultdict(list)
        for each in settled:
            keys[each.outcome].append(each.item.record_id)
        self._requeued({key: generations[key] for key in keys[Outcome.OK]})
        self._in_doubt({key: generations[key] for key in keys[Outcome.UNKNOWN]})
        back = keys[Outcome.FAILED] + keys[Outcome.PENDING]
        self._in_hand(back).update(state=TaskState.EXHAUSTED, changed_at=clock.now())
        add_to_history(REQUEUED, self._lease.operation, [won[key] for key in keys[Outcome.OK]], clock.now())

    def _requeued(self, generations: Mapping[int, int]) -> None:
        for generation, keys in by_generation(generations).items():
            # A row that is not REQUEUING any more has newer data from the collector. Until then its message stays: a
            # worker may revoke the task, and a queue may be purged.
            self._in_hand(keys).update(
                state=TaskState.REQUEUED, generation=generation, attempt=0, crashes=0, changed_at=clock.now()
            )

    def _in_doubt(self, generations: Mapping[int, int]) -> None:
        for generation, keys in by_generation(generations).items():
            self._in_hand(keys).update(state=TaskState.UNKNOWN, changed_at=clock.now())
            Payload.objects.filter(record__in=keys, generation__lt=generation).update(generation=generation)

    def _in_hand(self, records: Sequence[int]) -> QuerySet[TaskRecord]:
        return TaskRecord.objects.filter(pk__in=records, state=TaskState.REQUEUING, operation=self._lease.operation)

    def _settle_orphans(self) -> None:
        self._lease.beat()
        operation = self._lease.operation
        left = TaskRecord.objects.filter(operation=operation, state=TaskState.REQUEUING)
        doubtful = {
            key: next_generation(generation, of_payload)
            for key, generation, of_payload in left.values_list("pk", "generation", "payload__generation")
        }
        pending = OperationItem.objects.filter(operation=operation, outcome=Outcome.PENDING)
        continued = pending.filter(record__operation=operation, record__generation__gt=F("generation"))
        reason = "its runner died while it was being published"
        self._lease.settle(
            [
                *(Settled(item, Outcome.OK) for item in continued),
                *(Settled(item, Outcome.UNKNOWN, reason) for item in pending.filter(record__in=doubtful)),
            ]
        )
        lock(doubtful)
        self._in_doubt(doubtful)


class Edit(Requeue):
    """A requeue with other arguments, which are lost when its request has ended: then it settles unfinished tasks."""

    def do(self, items: Sequence[OperationItem]) -> None:
        """Requeue the edited task. Raises `RmqDelayError` where the edit was lost."""
        if not self._edited:
            raise RmqDelayError("the edited arguments were lost with their request: edit the task again")
        super().do(items)


def next_generation(of_record: int, of_payload: int | None) -> int:
    """Return the generation of the next requeue, which no published message can have, confirmed or not.

    After a requeue with unknown outcome the record keeps its generation, so that events of the published message are
    newer; the payload stores the used generation.
    """
    return h.next_generation(max(of_record, of_payload or 0))


def expired_among(records: QuerySet[Any], most: int) -> int:
    """Return how many of the first ``most`` tasks have expired."""
    headers = Payload.objects.filter(record__in=records.values("pk")[:most]).values_list("headers", flat=True)
    return sum(_has_expired(each) for each in headers.iterator(chunk_size=100))


def _has_expired(headers: bytes | memoryview) -> bool:
    return h.has_expired(headers_of(StoredMessage(b"", bytes(headers), {})))


def _barred(items: Sequence[OperationItem], *, may_expire: bool) -> dict[int, str]:
    """Return the records of ``items`` that cannot be requeued in any state, with the reasons."""
    found = Payload.objects.filter(record__in=[item.record_id for item in items])
    headers = dict(found.values_list("record_id", "headers"))
    barred = {}
    for item in items:
        if item.record_id not in headers:
            barred[item.record_id] = "its message is not in the database"
        elif not may_expire and _has_expired(headers[item.record_id]):
            barred[item.record_id] = "its expires is past: a worker would revoke it"
    return barred


def _affordable(items: Sequence[OperationItem]) -> Sequence[OperationItem]:
    """Return the first of ``items`` whose bodies have `MAX_BYTES` together; at least one."""
    kept = Payload.objects.filter(record__in=[item.record_id for item in items])
    sizes = committed(lambda: dict(kept.annotate(size=Length("body")).values_list("record_id", "size")))
    total = 0
    for place, item in enumerate(items):
        total += sizes.get(item.record_id, 0)
        if total > MAX_BYTES:
            return items[: max(1, place)]
    return items
