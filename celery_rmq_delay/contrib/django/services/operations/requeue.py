"""Requeue: claim, publish with confirm, write down what is certain. In this order, each committed before the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import amqp
from django.db.models import F, QuerySet
from django.db.models.functions import Length
from django.utils import timezone
from django.utils.translation import gettext as _

from ..... import headers as h
from .....events.schema import REQUEUED
from .....exceptions import RmqDelayError
from ...messages import StoredMessage, for_requeue, headers_of
from ...models import OperationItem, Payload, TaskRecord, TaskState
from .claims import claim, lock
from .lease import Lease, Outcome, Settled
from .link import Link
from .notes import tell
from .publishing import Fate, Publisher, Sent
from .transactions import committed

#: Bytes of the bodies that are published at a time.
MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Edited:
    """What is published in place of what is stored."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Ready:
    """A message to publish, and the generation that it begins."""

    message: amqp.Message
    generation: int


class Requeue:
    """Sends exhausted tasks back to their origin queues.

    A row is REQUEUING from before its message is written until its outcome is: what a dead runner left in this state
    may have been published or not, and becomes UNKNOWN.
    """

    def __init__(self, lease: Lease, link: Link, edited: Mapping[int, Edited] | None = None) -> None:
        self._lease, self._edited = lease, edited or {}
        self._publisher = Publisher(link)

    @property
    def window(self) -> int:
        """How many tasks to do next."""
        return self._publisher.window

    def resume(self) -> None:
        """Settle what a dead runner had in hand."""
        committed(self._settle_orphans)

    def abandon(self) -> None:
        """Settle what an error has left in hand, as if this runner had died."""
        self.resume()

    def do(self, items: Sequence[OperationItem]) -> None:
        """Requeue these tasks; one whose message could not even be written stays to be done. Raises `BrokerDownError`.

        When this returns their outcomes are committed.
        """
        self._publisher.ready()
        items = _affordable(items)
        won = committed(lambda: self._claim(items))
        ready = self._ready(won)
        messages = [(key, each.message, won[key].queue) for key, each in ready.items()]
        sent = self._publisher.publish(messages) if messages else {}
        committed(lambda: self._settle(items, won, ready, sent))

    def _claim(self, items: Sequence[OperationItem]) -> dict[int, TaskRecord]:
        self._lease.beat()  # the first statement is a write: SQLite cannot turn a read into one
        won, skipped = claim(
            self._lease.operation, items, [TaskState.EXHAUSTED], TaskState.REQUEUING, barred=_barred(items)
        )
        self._lease.settle(skipped)
        return won

    def _ready(self, won: Mapping[int, TaskRecord]) -> dict[int, _Ready]:
        ready = {}
        for payload in committed(lambda: list(Payload.objects.filter(record__in=list(won)))):
            key, edited = payload.record_id, self._edited.get(payload.record_id)
            kept = StoredMessage(bytes(payload.body), bytes(payload.headers), payload.properties)
            generation = next_generation(won[key].generation, payload.generation)
            named = {h.GENERATION: generation, h.LIFE: won[key].life}
            changed = {**named, **(edited.headers if edited else {})}
            ready[key] = _Ready(for_requeue(kept, edited.body if edited else None, **changed), generation)
        return {key: ready[key] for key in won if key in ready}

    def _settle(
        self,
        items: Sequence[OperationItem],
        won: Mapping[int, TaskRecord],
        ready: Mapping[int, _Ready],
        sent: Mapping[int, Sent],
    ) -> None:
        outcomes = {Fate.CONFIRMED: Outcome.OK, Fate.REFUSED: Outcome.FAILED, Fate.UNKNOWN: Outcome.UNKNOWN}
        missing = Sent(Fate.REFUSED, _("its message is not in the database"))
        fates = {item: sent.get(item.record_id, missing) for item in items if item.record_id in won}
        self._lease.settle(
            Settled(item, outcomes[each.fate], each.reason) for item, each in fates.items() if each.fate in outcomes
        )
        lock(won)
        confirmed, doubtful, back = dict[int, int](), dict[int, int](), list[int]()
        for item, each in fates.items():
            key = item.record_id
            if each.fate is Fate.CONFIRMED:
                confirmed[key] = ready[key].generation
            elif each.fate is Fate.UNKNOWN:
                doubtful[key] = ready[key].generation
            else:
                back.append(key)
        self._requeued(confirmed)
        self._in_doubt(doubtful)
        self._in_hand(back).update(state=TaskState.EXHAUSTED, changed_at=timezone.now())
        tell(REQUEUED, self._lease.operation, [won[key] for key in confirmed], timezone.now())

    def _requeued(self, generations: Mapping[int, int]) -> None:
        for generation, keys in _grouped(generations).items():
            # A row that is not REQUEUING any more has been heard of again: what the collector wrote is newer. Until
            # then the message is kept: a worker may revoke the task, and a queue may be purged.
            self._in_hand(keys).update(
                state=TaskState.REQUEUED, generation=generation, attempt=0, crashes=0, changed_at=timezone.now()
            )

    def _in_doubt(self, generations: Mapping[int, int]) -> None:
        for generation, keys in _grouped(generations).items():
            self._in_hand(keys).update(state=TaskState.UNKNOWN, changed_at=timezone.now())
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
        heard = pending.filter(record__operation=operation, record__generation__gt=F("generation"))
        reason = _("its runner died while it was being published")
        self._lease.settle(
            [
                *(Settled(item, Outcome.OK) for item in heard),
                *(Settled(item, Outcome.UNKNOWN, reason) for item in pending.filter(record__in=doubtful)),
            ]
        )
        self._in_doubt(doubtful)


class LostEdit(Requeue):
    """An edit whose page is gone, and the new arguments with it: only what it had in hand can be settled."""

    def do(self, items: Sequence[OperationItem]) -> None:
        """Raise `RmqDelayError`."""
        raise RmqDelayError(_("the edited arguments were in a page that is gone: edit again"))


def next_generation(of_record: int, of_payload: int | None) -> int:
    """Return the generation of the next requeue: one that nothing on its way can have, not even what is in doubt.

    The record of a requeue in doubt stays in its generation, so that news of the doubtful one are newer; the payload
    remembers the number that is used up.
    """
    return min(max(of_record, of_payload or 0), h.MAX_COUNT) + 1


def _barred(items: Sequence[OperationItem]) -> dict[int, str]:
    """Return the records of ``items`` that cannot be requeued whatever their state, and why."""
    found = Payload.objects.filter(record__in=[item.record_id for item in items])
    headers = dict(found.values_list("record_id", "headers"))
    barred = {}
    for item in items:
        if item.record_id not in headers:
            barred[item.record_id] = _("its message is not in the database")
        elif h.has_expired(headers_of(StoredMessage(b"", bytes(headers[item.record_id]), {}))):
            barred[item.record_id] = _("its expires is past: a worker would revoke it")
    return barred


def _affordable(items: Sequence[OperationItem]) -> Sequence[OperationItem]:
    """Return the first of ``items`` whose messages fit into memory together; one in any case."""
    kept = Payload.objects.filter(record__in=[item.record_id for item in items])
    sizes = committed(lambda: dict(kept.annotate(size=Length("body")).values_list("record_id", "size")))
    total = 0
    for place, item in enumerate(items):
        total += sizes.get(item.record_id, 0)
        if total > MAX_BYTES:
            return items[: max(1, place)]
    return items


def _grouped(generations: Mapping[int, int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for key, generation in generations.items():
        groups.setdefault(generation, []).append(key)
    return groups
