"""Discard and restore: changes of state in the database."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from django.db.models import F, OuterRef, Subquery

from .....events.schema import DISCARDED
from ...models import OperationItem, Payload, TaskRecord, TaskState
from ...transactions import committed
from .. import clock
from . import parked
from .claims import claim, lock
from .lease import Lease, Outcome, Settled
from .link import Link
from .notes import add_to_history
from .results import Results

#: The most rows that one transaction changes.
WINDOW = 500


class Discard:
    """Marks tasks as discarded; history and messages stay. Parked ones are removed from their delay queues."""

    window = parked.WINDOW

    def __init__(self, lease: Lease, link: Link, tick: Callable[[], None]) -> None:
        self._lease, self._tick = lease, tick
        self._parked = parked.Discard(lease, link, tick)
        self._results = Results(lease)

    def resume(self) -> None:
        """Do nothing: unfinished tasks are found again."""

    def abandon(self) -> None:
        """Settle the tasks that an error has left unfinished."""
        self._parked.abandon()

    def do(self, items: Sequence[OperationItem]) -> None:
        """Discard these tasks, then revoke them in the result backend. Raises `BrokerDownError`."""
        waiting = self._parked.concerns(items)
        others = [item for item in items if item.record_id not in waiting]
        for start in range(0, len(others), WINDOW):
            some = others[start : start + WINDOW]
            self._results.revoke(committed(lambda some=some: self._discard(some)))  # type: ignore[misc]
            self._tick()
        if waiting:
            try:
                self._parked.do([item for item in items if item.record_id in waiting])
            finally:  # settled tasks are in no later window
                self._results.revoke(self._parked.discarded)

    def _discard(self, items: Sequence[OperationItem]) -> list[TaskRecord]:
        self._lease.beat()
        of = [TaskState.EXHAUSTED, TaskState.UNKNOWN]
        won, skipped = claim(self._lease.operation, items, of, TaskState.DISCARDED)
        add_to_history(DISCARDED, self._lease.operation, won.values(), clock.now())
        self._lease.settle([*skipped, *(Settled(item, Outcome.OK) for item in items if item.record_id in won)])
        return list(won.values())


class Restore:
    """Makes tasks exhausted again that were discarded, or requeued without an event since.

    The first is an undo; the second is an operator's decision, as for tasks with unknown outcome.
    """

    window = WINDOW

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def resume(self) -> None:
        """Do nothing: every step is one transaction."""

    def abandon(self) -> None:
        """Do nothing, as in `resume`."""

    def do(self, items: Sequence[OperationItem]) -> None:
        """Restore these tasks."""
        committed(lambda: self._restore(items))

    def _restore(self, items: Sequence[OperationItem]) -> None:
        self._lease.beat()
        operation, exhausted = self._lease.operation, TaskState.EXHAUSTED
        lock(item.record_id for item in items)
        requeued = TaskRecord.objects.filter(pk__in=[item.record_id for item in items], state=TaskState.REQUEUED)
        calls = dict(requeued.values_list("pk", "call_digest"))
        of = [TaskState.DISCARDED, TaskState.UNKNOWN, TaskState.REQUEUED]
        without_message = {key: "its message is not in the database" for key, call in calls.items() if not call}
        won, skipped = claim(operation, items, of, exhausted, barred=without_message)
        unconfirmed = [key for key in calls if key in won]
        # The published generation stays used, and its events are newer than the row.
        published = TaskRecord.objects.filter(pk=OuterRef("record")).values("generation")
        Payload.objects.filter(record__in=unconfirmed).update(generation=Subquery(published))
        TaskRecord.objects.filter(pk__in=unconfirmed).update(generation=F("generation") - 1)
        TaskRecord.objects.filter(pk__in=won, exhausted_at=None).update(exhausted_at=clock.now())
        self._lease.settle([*skipped, *(Settled(item, Outcome.OK) for item in items if item.record_id in won)])
