"""Rows for tests of the metrics."""

from __future__ import annotations

from django.utils import timezone

from celery_rmq_delay.contrib.django import prometheus
from celery_rmq_delay.contrib.django.models import CollectorStatus, Operation, Tally, TaskState, UnreadableMessage
from tests.support.django.records import ago, record


def tally(days: float = 0, **counts: int) -> None:
    Tally.objects.create(slot=ago(days=days), queue="payments", name="payments.charge", **counts)


def everything() -> None:
    """Fill the tables so that every metric has a sample."""
    record(TaskState.PARKED, tier=1, due_at=ago(minutes=5))
    record(TaskState.PARKED, tier=1, due_at=ago(seconds=10))
    record(TaskState.PARKED, tier=2, due_at=ago(minutes=-5))
    record(TaskState.PARKED, queue="mail", due_at=None)
    record(TaskState.EXHAUSTED, exhausted_at=ago(days=3))
    record(TaskState.EXHAUSTED, exhausted_at=ago(days=1))
    record(TaskState.UNKNOWN)
    record(TaskState.RECOVERED)
    tally(days=1, parked=10, recovered=5, exhausted=2, succeeded=1000)
    tally(parked=1, exhausted=1)
    Operation.objects.create(kind=Operation.Kind.REQUEUE, state=Operation.State.DONE, ok=38, skipped=2, failed=1)
    Operation.objects.create(kind=Operation.Kind.REQUEUE, state=Operation.State.FAILED, ok=2, unknown=1)
    UnreadableMessage.objects.create(digest="d", queue="q", body=b"", headers=b"", received_at=timezone.now())
    CollectorStatus.objects.create(
        name="c1", started_at=ago(), heartbeat_at=ago(), lag_ms=1500, waiting=7, events=100, exhausted=3, differs_by=-2
    )
    prometheus.lateness.labels("payments").observe(0.3)
