"""Adds operations to the histories of their tasks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from .....events.schema import event_id
from ...models import Attempt, Operation, TaskRecord


def add_to_history(kind: str, operation: Operation, records: Iterable[TaskRecord], at: datetime) -> None:
    """Add a row of ``kind`` to each history: ``reason`` is the kind of the operation, ``worker`` the actor.

    Repeated calls add a row only once.
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
