"""Counts of tasks, operations and failure groups, and the state of the collectors: for metrics and the command."""

from __future__ import annotations

from collections import Counter, namedtuple
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.db.models import Count, Min, Q, Sum
from django.utils import timezone

from ..models import CollectorStatus, FailureGroup, Operation, Tally, TaskRecord, TaskState
from ..queries import overdue
from .counts import broker_counts

#: The outcomes of a task of an operation.
OUTCOMES = ("ok", "skipped", "failed", "unknown")


#: How often tasks of one name and queue were parked, recovered and so on; ``succeeded`` counts first attempts.
Total = namedtuple("Total", ["queue", "task", "parked", "recovered", "exhausted", "succeeded"])
#: Operations of one kind in one state, and the outcomes of their tasks.
Operated = namedtuple("Operated", ["kind", "state", "count", "ok", "skipped", "failed", "unknown"])


def summary() -> dict[str, Any]:
    """Return all counts as plain data. Scans the whole table. ``ok`` of the broker may be False."""
    by_name, broker = tasks(), broker_counts(fresh=True)
    states: Counter[str] = Counter()
    for counts in by_name.values():
        states.update(counts)
    return {
        "states": dict(sorted(states.items())),
        "tasks": by_name,
        "parked": [each._asdict() for each in parked()],
        "exhausted": [each._asdict() for each in held(TaskState.EXHAUSTED)],
        "groups": top_groups(),
        "collectors": list(CollectorStatus.objects.order_by("name").values()),
        "broker": {
            "ok": broker.ok,
            "error": broker.error,
            "parked": broker.parked if broker.ok else None,
            "tiers": [asdict(each) for each in broker.tiers],
            "exact": broker.exact if broker.ok else None,
            "exhausted": broker.exhausted,
            "events": broker.events,
        },
    }


def parked() -> list[Any]:
    """Return the parked tasks by ``queue`` and ``tier``, which is None for exact delays.

    Rows have the ``count``, how many are ``due``, and ``overdue``: without an event for a minute since.
    """
    now = timezone.now()
    counts = {
        "count": Count("pk"),
        "due": Count("pk", filter=Q(due_at__lte=now)),
        "overdue": Count("pk", filter=overdue(now)),
        "oldest_due": Min("due_at"),
    }
    rows = TaskRecord.objects.filter(state=TaskState.PARKED).order_by("queue", "tier")
    return list(rows.values("queue", "tier").annotate(**counts).values_list("queue", "tier", *counts, named=True))


def held(*states: str) -> list[Any]:
    """Return the ``count`` of tasks by ``state`` and ``queue``; ``since`` is when the oldest was exhausted, or None."""
    rows = TaskRecord.objects.filter(state__in=states).order_by("state", "queue").values("state", "queue")
    counts = {"count": Count("pk"), "since": Min("exhausted_at")}
    return list(rows.annotate(**counts).values_list("state", "queue", *counts, named=True))


def tasks() -> dict[str, dict[str, int]]:
    """Return how many tasks of each name are in each state. Scans the whole table."""
    found: dict[str, dict[str, int]] = {}
    rows = TaskRecord.objects.order_by("name", "state").values_list("name", "state").annotate(Count("pk"))
    for name, state, count in rows:
        found.setdefault(name, {})[state] = count
    return found


def totals(*, since: datetime | None = None, before: datetime | None = None) -> list[Total]:
    """Return the sums by queue and task of tallies that begin at ``since`` or later, and ``before`` another time."""
    tallies = Tally.objects.order_by("queue", "name")
    if since is not None:
        tallies = tallies.filter(slot__gte=since)
    if before is not None:
        tallies = tallies.filter(slot__lt=before)
    sums = [Sum(name) for name in ("parked", "recovered", "exhausted", "succeeded")]
    return [Total(*row) for row in tallies.values_list("queue", "name").annotate(*sums)]


def operations() -> list[Operated]:
    """Return the operations by kind and state."""
    sums = [Sum(name) for name in OUTCOMES]
    rows = Operation.objects.order_by("kind", "state").values_list("kind", "state").annotate(Count("pk"), *sums)
    return [Operated(*row) for row in rows]


def top_groups() -> list[dict[str, Any]]:
    """Return the ten failure groups with the most exhausted tasks, the largest first."""
    rows = TaskRecord.objects.filter(state=TaskState.EXHAUSTED, failure_group__isnull=False).values_list(
        "failure_group"
    )
    counts = dict(rows.annotate(exhausted=Count("pk")).order_by("-exhausted", "failure_group")[:10])
    columns = ("fingerprint", "exception_type", "message", "frame", "muted")
    groups = {each.pop("pk"): each for each in FailureGroup.objects.filter(pk__in=counts).values("pk", *columns)}
    return [{**groups[key], "exhausted": count} for key, count in counts.items() if key in groups]
