"""Rows for tests that read and prune the tables."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import count
from typing import Any

from django.utils import timezone

from celery_rmq_delay.contrib.django.models import Attempt, FailureGroup, TaskRecord, TaskState

_numbers = count(1)


def ago(**time: float) -> datetime:
    return timezone.now() - timedelta(**time)


def record(state: TaskState = TaskState.EXHAUSTED, **given: Any) -> TaskRecord:
    """Return a saved record; its defaults are those of a payment."""
    values: dict[str, Any] = {
        "task_id": f"task-{next(_numbers)}",
        "name": "payments.charge",
        "queue": "payments",
        "changed_at": timezone.now(),
        **given,
    }
    return TaskRecord.objects.create(state=state, **values)


def attempt(of: TaskRecord, **given: Any) -> Attempt:
    values: dict[str, Any] = {"kind": "parked", "occurred_at": of.changed_at, **given}
    return Attempt.objects.create(event_id=f"event-{next(_numbers)}", record=of, **values)


def group(**given: Any) -> FailureGroup:
    values: dict[str, Any] = {
        "fingerprint": f"{next(_numbers):016x}",
        "exception_type": "requests.Timeout",
        "message": "no answer in <n> s",
        "first_seen": timezone.now(),
        "last_seen": timezone.now(),
        **given,
    }
    return FailureGroup.objects.create(**values)
