"""Claims tasks for an operation by compare and set, with reasons for the others, and adds it to their histories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from django.db import connections, router
from django.db.models.functions import Collate

from .....events.schema import event_id
from ...models import Attempt, Operation, OperationItem, TaskRecord, TaskState
from .. import clock
from .action import of_kind
from .lease import Outcome, Settled


def lock(records: Iterable[int]) -> None:
    """Lock rows in the order of the collector, so that operations and collectors do not deadlock.

    The locks permit rows that refer to these: no other user's `freeze` waits for them.
    """
    using = router.db_for_write(TaskRecord)
    # The collector sorts by bytes. SQLite locks the whole file.
    is_postgres = connections[using].vendor == "postgresql"
    order = [Collate(name, "C") if is_postgres else name for name in ("task_id", "life")]
    found = TaskRecord.objects.using(using).filter(pk__in=list(records)).order_by(*order)
    list(found.select_for_update(no_key=True).values_list("pk"))


def claim(
    operation: Operation,
    items: Sequence[OperationItem],
    of: Iterable[str],
    to: str,
    *,
    barred: Mapping[int, str] | None = None,
) -> tuple[dict[int, TaskRecord], list[Settled]]:
    """Set the state of the tasks that are in the states ``of``, and in the generation that was selected.

    ``barred`` are records that must not be claimed, with the reasons. Returns the claimed records by id, in the order
    of ``items``, and the other items as skipped, with the reasons. Repeated after a commit whose answer was lost, it
    returns the same. Call it in a transaction.
    """
    barred = barred or {}
    lock(item.record_id for item in items)
    now = clock.now()
    wanted = {item.record_id: item.generation for item in items if item.record_id not in barred}
    for generation, records in by_generation(wanted).items():
        TaskRecord.objects.filter(pk__in=records, state__in=list(of), generation=generation).update(
            state=to, operation=operation, changed_at=now
        )
    found = TaskRecord.objects.select_related("operation").in_bulk([item.record_id for item in items])
    won = {}
    for item in items:
        record = found.get(item.record_id)
        if record is not None and record.state == to and record.operation_id == operation.pk:
            won[record.pk] = record
    return won, [
        Settled(item, Outcome.SKIPPED, why_not(found.get(item.record_id), item.generation, barred.get(item.record_id)))
        for item in items
        if item.record_id not in won
    ]


def by_generation(generations: Mapping[int, int]) -> dict[int, list[int]]:
    """Return the records of each generation."""
    groups: dict[int, list[int]] = {}
    for key, generation in generations.items():
        groups.setdefault(generation, []).append(key)
    return groups


def why_not(record: TaskRecord | None, generation: int, barred: str | None = None) -> str:
    """Return why a task selected in ``generation`` cannot be processed; ``barred`` where it is still exhausted."""
    if record is None:
        return "deleted"
    by = record.operation.actor if record.operation else ""
    action = of_kind(record.operation.kind) if record.operation else None
    by_requeue = action is not None and action.requeues
    requeued = record.generation > generation or record.state in (TaskState.REQUEUING, TaskState.REQUEUED)
    if by_requeue and (requeued or record.state == TaskState.RECOVERED):
        return f"already requeued by {by}"
    if requeued:
        return "already requeued"
    if record.state == TaskState.DISCARDED and by:
        return f"already discarded by {by}"
    if record.state == TaskState.UNKNOWN:
        return "the outcome of an earlier requeue is unknown: restore it first"
    if record.state == TaskState.EXHAUSTED and barred:
        return barred
    return f"now {record.get_state_display().lower()}"


def add_to_history(kind: str, operation: Operation, records: Iterable[TaskRecord], at: datetime) -> None:
    """Add a row to each history, once: ``reason`` is the kind of the operation, ``worker`` the actor."""
    Attempt.objects.bulk_create(
        [
            Attempt(
                event_id=event_id(
                    record.task_id, record.generation, record.attempt, f"{kind}:{operation.pk}", record.life
                ),
                record=record,
                kind=kind,
                generation=record.generation,
                attempt=record.attempt,
                occurred_at=at,
                worker=operation.actor,
                reason=operation.kind,
            )
            for record in records
        ],
        ignore_conflicts=True,
    )
