"""Run parked tasks now or discard them: searches their delay queues in the broker.

A search receives messages without ack, takes the wanted ones and requeues the others in their place; see `scan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..... import headers as h
from .....amqp.apply import ready_counts
from .....amqp.scan import Scan, scanning
from .....app.inventory import plans
from .....events.schema import DISCARDED, REQUEUED
from .....exceptions import BrokerDownError, OutcomeUnknownError, PublishError, RmqDelayError
from .....operations.parked import Place, places, search_limit, task_id_of
from ...broker import BROKER_ERRORS, broker_down, delay
from ...conf import conf
from ...messages import StoredMessage, call_digest, stored
from ...models import OperationItem, Payload, TaskRecord, TaskState
from ...transactions import committed
from .. import clock
from .claims import add_to_history, claim, lock, why_not
from .lease import Outcome, Run, Settled, Work

if TYPE_CHECKING:
    from kombu import Connection
    from kombu.message import Message

#: The most tasks of one search.
WINDOW = 5_000
#: Found messages that are processed together.
_BATCH = 50
#: The most lost connections without progress before the operation fails.
_LOSSES = 3
_TWICE = "it may run twice: now, and when it is due"

#: The key of a task in the broker and in the database: its id and life.
Key = tuple[str, str]


@dataclass(frozen=True)
class Wanted:
    """A task to search for."""

    item: OperationItem
    record: TaskRecord

    def may_be_in(self, place: Place) -> bool:
        """Return whether the task may be in a delay queue: by the record's delay queue, or else by its tier."""
        named = self.record.delay_queue
        return named == place.queue if named else self.record.tier == place.tier_index


@dataclass(frozen=True)
class Found:
    """A wanted message that the search has received."""

    wanted: Wanted
    message: Message
    stored: StoredMessage

    @property
    def item(self) -> OperationItem:
        """The item of its task."""
        return self.wanted.item


class _Search(Work):
    """One kind of work on parked tasks. Messages that a dead runner had received are back in their delay queues."""

    window = WINDOW

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._losses = self._limit = 0
        self._in_hand: list[OperationItem] = []

    def abandon(self) -> None:
        """Settle the tasks that an error has left unfinished: their messages may have left the queue."""
        text = "an error stopped the operation while it was being processed"
        self._settle([Settled(item, Outcome.UNKNOWN, text) for item in self._in_hand])
        self._in_hand = []

    def _take(self, place: Place, scan: Scan, found: Sequence[Found]) -> list[Settled]:
        raise NotImplementedError

    def _absent(self, wanted: Wanted, *, is_complete: bool) -> Settled:
        """Return the outcome of a task that was not found; ``is_complete``: its queues were searched completely."""
        if is_complete:
            return Settled(wanted.item, Outcome.SKIPPED, "not in its delay queue: it is already due")
        text = f"not among the first {self._limit} messages of its delay queue"
        return Settled(wanted.item, Outcome.SKIPPED, text)

    def do(self, items: Sequence[OperationItem]) -> None:
        """Search for the parked tasks, and settle the others."""
        connection = self._link.open()
        wanted_ones = TaskRecord.objects.select_related("operation")
        records = committed(lambda: wanted_ones.in_bulk([item.record_id for item in items]))
        queues: dict[str, dict[Key, Wanted]] = {}
        skipped = []
        for item in items:
            record = records.get(item.record_id)
            if record is None or not self._is_meant(record, item):
                skipped.append(Settled(item, Outcome.SKIPPED, why_not(record, item.generation)))
            elif reason := _out_of_reach(record):
                skipped.append(Settled(item, Outcome.SKIPPED, reason))
            else:
                wanted_here = queues.setdefault(record.queue, {})
                wanted_here[record.task_id, record.life] = Wanted(item, record)
        self._settle(skipped)
        try:
            for queue, wanted in queues.items():
                self._search_queue(connection, queue, wanted)
        except BROKER_ERRORS as error:
            self._link.drop()
            self._in_hand = []
            self._losses += 1  # tasks without an outcome are searched for again
            if self._losses > _LOSSES:
                raise broker_down(error) from error

    def _is_meant(self, record: TaskRecord, item: OperationItem) -> bool:
        return record.state == TaskState.PARKED and record.generation == item.generation

    def _settle(self, settled: Sequence[Settled]) -> None:
        if settled:
            committed(lambda: self._lease.settle(settled))
            self._losses = 0

    def _search_queue(self, connection: Connection, queue: str, wanted: dict[Key, Wanted]) -> None:
        """Take the wanted tasks of one origin queue; those with an outcome are removed from ``wanted``."""
        try:
            found = self._places(connection, queue)
        except RmqDelayError as error:
            self._settle([Settled(each.item, Outcome.FAILED, str(error)) for each in wanted.values()])
            return
        is_complete, self._limit = True, search_limit(connection)
        for place in found:
            here = {key: each for key, each in wanted.items() if each.may_be_in(place)}
            if here:
                is_complete = self._search_place(connection, place, here, wanted) and is_complete
        self._settle([self._absent(each, is_complete=is_complete) for each in wanted.values()])

    def _places(self, connection: Connection, queue: str) -> list[Place]:
        (plan,) = plans(connection, delay(), [queue])
        found = places(connection, plan)
        counts = ready_counts(connection, [place.queue for place in found])
        return [place for place in found if counts[place.queue]]

    def _search_place(
        self, connection: Connection, place: Place, here: Mapping[Key, Wanted], wanted: dict[Key, Wanted]
    ) -> bool:
        """Take the wanted tasks of one delay queue; return whether all were found or the whole queue was searched."""
        missing, found = set(here), list[Found]()
        with scanning(connection, place.queue, self._limit, is_delay_queue=True) as scan:
            for message in scan:
                key = task_id_of(message), h.life(message.headers) or h.FIRST_LIFE
                if key in missing and scan.raw is not None:
                    missing.discard(key)
                    found.append(Found(here[key], message, stored(scan.raw)))
                if len(found) == _BATCH or not missing:
                    self._work(place, scan, found, wanted)
                if not missing:
                    return True
                self._tick()
            self._work(place, scan, found, wanted)
            return scan.complete

    def _work(self, place: Place, scan: Scan, found: list[Found], wanted: dict[Key, Wanted]) -> None:
        if found:
            self._in_hand = [each.item for each in found]
            self._settle(self._take(place, scan, found))
            self._in_hand = []
        for each in found:
            del wanted[each.wanted.record.task_id, each.wanted.record.life]
        found.clear()


class RunNow(_Search):
    """Sends parked tasks to their origin queues before they are due."""

    def _take(self, place: Place, scan: Scan, found: Sequence[Found]) -> list[Settled]:
        sent, settled = list[Found](), list[Settled]()
        doubt: Exception | None = None
        for each in found:
            try:
                place.send_home(scan, each.message)
                sent.append(each)
            except OutcomeUnknownError as error:  # noqa: PERF203 - each turn waits for the broker
                settled.append(Settled(each.item, Outcome.UNKNOWN, _TWICE))
                doubt = BrokerDownError(str(error))  # the next one would wait as long
                break
            except PublishError as error:
                settled.append(Settled(each.item, Outcome.FAILED, str(error)))
            except BROKER_ERRORS as error:
                doubt = error
                sent.append(each)
                break
        unsure = _unsure(scan)
        lost = unsure or (None if isinstance(doubt, BrokerDownError) else doubt)
        committed(lambda: self._write(sent, settled, doubtful=lost is not None))
        if isinstance(doubt, BrokerDownError):
            self._in_hand = []  # the others were not published, and are back in their queue
        if trouble := doubt or unsure:
            raise trouble
        return []

    def _write(self, sent: Sequence[Found], settled: Sequence[Settled], *, doubtful: bool) -> None:
        self._lease.beat()
        lock(each.item.record_id for each in sent)
        attempts = dict(
            TaskRecord.objects.filter(pk__in=[each.item.record_id for each in sent]).values_list("pk", "attempt")
        )
        # A task that has failed again since is parked for its next attempt.
        running = [each.item for each in sent if attempts.get(each.item.record_id) == each.wanted.record.attempt]
        won, _not = claim(self._lease.operation, running, [TaskState.PARKED], TaskState.RUNNING)
        add_to_history(REQUEUED, self._lease.operation, won.values(), clock.now())
        outcome, detail = (Outcome.UNKNOWN, _TWICE) if doubtful else (Outcome.OK, "")
        self._lease.settle([*settled, *(Settled(each.item, outcome, detail) for each in sent)])


class Discard(_Search):
    """Removes parked tasks from the broker: each message is in the database before it leaves its queue."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        #: The records that the last `do` discarded, also if it raised.
        self.discarded: list[TaskRecord] = []

    def concerns(self, items: Sequence[OperationItem]) -> set[int]:
        """Return the records that are parked, or that this operation has begun to discard."""
        found = TaskRecord.objects.filter(pk__in=[item.record_id for item in items])
        return {
            *found.filter(state=TaskState.PARKED).values_list("pk", flat=True),
            *found.filter(state=TaskState.DISCARDED, operation=self._lease.operation).values_list("pk", flat=True),
        }

    def do(self, items: Sequence[OperationItem]) -> None:
        """Discard these tasks. Raises `BrokerDownError`."""
        self.discarded = []
        super().do(items)

    def _is_meant(self, record: TaskRecord, item: OperationItem) -> bool:
        return super()._is_meant(record, item) or self._is_half_done(record)

    def _is_half_done(self, record: TaskRecord) -> bool:
        """Return whether this operation has discarded the task in the database, but maybe not in the broker."""
        return record.state == TaskState.DISCARDED and record.operation_id == self._lease.operation.pk

    def _absent(self, wanted: Wanted, *, is_complete: bool) -> Settled:
        if self._is_half_done(wanted.record) and is_complete:
            due = wanted.record.due_at
            if due is not None and due > clock.now():
                self.discarded.append(wanted.record)
                return Settled(wanted.item, Outcome.OK)
            text = "it is discarded, but its message may have come back: it was due"
            return Settled(wanted.item, Outcome.UNKNOWN, text)
        return super()._absent(wanted, is_complete=is_complete)

    def _take(self, place: Place, scan: Scan, found: Sequence[Found]) -> list[Settled]:
        won, skipped = committed(lambda: self._keep(found))
        gone = [each for each in found if each.item.record_id in won]
        try:
            for each in gone:
                scan.remove(each.message)
            scan.synchronise()
        except BROKER_ERRORS:
            text = "it is discarded, but its message may come back"
            self._settle([*skipped, *(Settled(each.item, Outcome.UNKNOWN, text) for each in gone)])
            raise
        self.discarded += won.values()
        return [*skipped, *(Settled(each.item, Outcome.OK) for each in gone)]

    def _keep(self, found: Sequence[Found]) -> tuple[dict[int, TaskRecord], list[Settled]]:
        self._lease.beat()
        now = clock.now()
        won, skipped = claim(
            self._lease.operation, [each.item for each in found], [TaskState.PARKED], TaskState.DISCARDED
        )
        self._catch_up([each for each in found if each.item.record_id in won])
        kept = [each for each in found if each.item.record_id in won and conf().store_payload != "never"]
        Payload.objects.bulk_create(
            [
                Payload(record=each.wanted.record, generation=each.item.generation, stored_at=now, **vars(each.stored))
                for each in kept
            ],
            update_conflicts=True,
            unique_fields=["record"],
            update_fields=["generation", "body", "headers", "properties", "stored_at"],
        )
        calls = [TaskRecord(pk=each.item.record_id, call_digest=call_digest(each.stored)) for each in kept]
        TaskRecord.objects.bulk_update(calls, ["call_digest"])
        add_to_history(DISCARDED, self._lease.operation, won.values(), now)
        return won, skipped

    def _catch_up(self, found: Sequence[Found]) -> None:
        """Store the attempt from the message: its event may still arrive, and must not set the row to PARKED."""
        for each in found:
            record, attempt = each.wanted.record, h.retries(each.message.headers, each.wanted.record.queue) - 1
            if attempt > record.attempt:
                TaskRecord.objects.filter(pk=record.pk, attempt__lt=attempt).update(attempt=attempt)


def _out_of_reach(record: TaskRecord) -> str:
    """Return why a search cannot find a parked task; an empty text where it can."""
    if record.delay_queue:
        return ""
    if record.tier is None:
        return "its delay is exact: it moves through many queues, and cannot be searched for"
    if delay().has_native_retry(record.queue):
        return "its queue uses RabbitMQ's native retry: messages cannot be read before they are due"
    return ""


def _unsure(scan: Scan) -> Exception | None:
    """Wait until the broker has handled the acks; return the error where this is not certain."""
    try:
        scan.synchronise()
    except BROKER_ERRORS as error:
        return error
    return None
