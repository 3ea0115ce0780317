"""What people did, in the histories of the tasks they did it to."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from .....events.schema import event_id
from ...models import Attempt, Operation, TaskRecord


def tell(kind: str, operation: Operation, records: Iterable[TaskRecord], at: datetime) -> None:
    """Add a row of ``kind`` to each history: ``reason`` is the kind of the operation, ``worker`` who asked for it.

    The same act is one row, however often it is told.
    """
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
