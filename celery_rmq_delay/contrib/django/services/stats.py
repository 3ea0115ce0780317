"""Counts of tasks, operations and failure groups, and the state of the collectors: for metrics and the command."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Min, Q, Sum
from django.utils import timezone

from ..models import CollectorStatus, FailureGroup, Operation, Tally, TaskRecord, TaskState
from ..queries import overdue
from .counts import broker_counts

#: The outcomes of a task of an operation.
OUTCOMES = ("ok", "skipped", "failed", "unknown")


@dataclass(frozen=True)
class Parked:
    """The parked tasks of one queue in one tier; ``tier`` None has an exact delay.

    ``due`` counts those that are due, ``overdue`` those of them without an event for a minute since.
    """

    queue: str
    tier: int | None
    count: int
    due: int
    overdue: int
    oldest_due: datetime | None


@dataclass(frozen=True)
class Held:
    """The tasks of one queue in one state; ``since`` is when the oldest was exhausted, None where none was."""

    state: str
    queue: str
    count: int
    since: datetime | None


@dataclass(frozen=True)
class Total:
    """How often tasks of one name and queue were parked, recovered and so on; ``succeeded`` counts first attempts."""

    queue: str
    task: str
    parked: int
    recovered: int
    exhausted: int
    succeeded: int


@dataclass(frozen=True)
class Operated:
    """Operations of one kind in one state, and the outcomes of their tasks."""

    kind: str
    state: str
    count: int
    ok: int
    skipped: int
    failed: int
    unknown: int


@dataclass(frozen=True)
class Group:
    """A failure group, and how many of its tasks are exhausted."""

    fingerprint: str
    exception_type: str
    message: str
    frame: str
    muted: bool
    exhausted: int


def summary() -> dict[str, Any]:
    """Return all counts as plain data. Scans the whole table. ``ok`` of the broker may be False."""
    by_name, broker = tasks(), broker_counts(fresh=True)
    states: Counter[str] = Counter()
    for counts in by_name.values():
        states.update(counts)
    return {
        "states": dict(sorted(states.items())),
        "tasks": by_name,
        "parked": [asdict(each) for each in parked()],
        "exhausted": [asdict(each) for each in held(TaskState.EXHAUSTED)],
        "groups": [asdict(each) for each in top_groups()],
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


def parked() -> list[Parked]:
    """Return the parked tasks by queue and tier."""
    now = timezone.now()
    rows = (
        TaskRecord.objects.filter(state=TaskState.PARKED)
        .order_by("queue", "tier")
        .values_list("queue", "tier")
        .annotate(
            Count("pk"),
            due=Count("pk", filter=Q(due_at__lte=now)),
            overdue=Count("pk", filter=overdue(now)),
            oldest_due=Min("due_at"),
        )
    )
    return [Parked(*row) for row in rows]


def held(*states: str) -> list[Held]:
    """Return the tasks in these states by state and queue."""
    rows = TaskRecord.objects.filter(state__in=states).order_by("state", "queue").values_list("state", "queue")
    return [Held(*row) for row in rows.annotate(Count("pk"), since=Min("exhausted_at"))]


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


def top_groups(most: int = 10) -> list[Group]:
    """Return the failure groups with the most exhausted tasks, the largest first."""
    rows = TaskRecord.objects.filter(state=TaskState.EXHAUSTED, failure_group__isnull=False)
    counts = (
        rows.values_list("failure_group").annotate(exhausted=Count("pk")).order_by("-exhausted", "failure_group")[:most]
    )
    found = FailureGroup.objects.in_bulk([group for group, _ in counts])
    return [
        Group(group.fingerprint, group.exception_type, group.message, group.frame, group.muted, exhausted)
        for group, exhausted in ((found[key], count) for key, count in counts if key in found)
    ]
