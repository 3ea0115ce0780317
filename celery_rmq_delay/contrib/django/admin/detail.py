"""The context of a task's page: facts, error, attempts, traceback, related tasks and operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ....events.schema import DISCARDED, REQUEUED
from ..models import Attempt, FailureGroup, Operation, OperationItem, TaskRecord, TaskState
from . import text
from .attempts import timeline
from .base import BELONGING, ReadOnlyAdmin
from .tracebacks import parts

#: Maximum number of each on the page.
MAX_ATTEMPTS = 200
MAX_OPERATIONS = 50
MAX_RELATED = 20

Fact = tuple[str, str | SafeString]


def detail(admin: ReadOnlyAdmin, request: HttpRequest, record: TaskRecord) -> dict[str, Any]:
    """Return the context of the template ``record.html``; all texts and lists in it are bounded."""
    now = timezone.now()
    attempts = list(record.attempts.order_by("-generation", "-attempt", "-occurred_at", "-id")[:MAX_ATTEMPTS])[::-1]
    traced = next((each for each in reversed(attempts) if each.traceback), None)
    return {
        "record": record,
        "now": now,
        "state": format_html("{} {}", text.state_badge(record.state), text.ran_badge(record.ran_after_discard_at)),
        "facts": list(_facts(record)),
        "times": list(_times(record)),
        "error": text.plain(record.exception_type, 255),
        "error_message": text.plain(record.exception_message),
        "group": record.failure_group,
        "group_text": _group_text(record),
        "group_url": _group_url(admin, request, record),
        "args_preview": text.plain(record.args_preview, 2_000),
        "kwargs_preview": text.plain(record.kwargs_preview, 2_000),
        "steps": [_step(step) for step in timeline(attempts)],
        "traceback": text.plain(traced.traceback) if traced else "",
        "traceback_parts": parts(text.plain(traced.traceback)) if traced else [],
        "relatives": list(_relatives(admin, request, record)),
        "operations": list(operations(admin, request, record)),
    }


def _facts(record: TaskRecord) -> Iterator[Fact]:
    most = "unlimited" if record.max_retries is None else str(record.max_retries + 1)
    yield "Task id", text.hostile(record.task_id, 255)
    yield "Queue", text.hostile(record.queue, 255)
    yield (
        "Exchange, routing key",
        format_html("{} {}", text.hostile(record.exchange or "(default)", 255), text.hostile(record.routing_key, 255)),
    )
    yield "Worker", text.hostile(record.worker, 255)
    yield "Attempts", f"{record.attempt + 1} / {most}"
    yield "Ladder", " → ".join(text.delay(each) for each in _ladder(record)) or text.EMPTY
    if record.tier is not None or (record.delay_ms is not None and record.state == TaskState.PARKED):
        tier_index = "exact" if record.tier is None else str(record.tier)
        yield "Tier", f"{tier_index} ({text.delay(record.delay_ms)})"
    if record.delay_queue:
        yield "Delay queue", text.hostile(record.delay_queue, 255)
    if record.generation:
        yield "Requeued", f"{record.generation} x"
    if record.crashes:
        yield "Crashes", str(record.crashes)
    if record.reason:
        yield "Exhausted because", format_html("<bdi>{}</bdi>", text.reason(record.reason))


def _ladder(record: TaskRecord) -> list[int]:
    found = record.ladder_ms if isinstance(record.ladder_ms, list) else []
    return [each for each in found if isinstance(each, int)][:100]


def _times(record: TaskRecord) -> Iterator[Fact]:
    now = timezone.now()
    for label, moment in (
        ("First failed", record.first_failed_at),
        ("Parked", record.parked_at),
        ("Next retry", record.due_at),
        ("Exhausted", record.exhausted_at),
        ("Recovered", record.recovered_at),
        ("State changed", record.changed_at),
        ("Ran after it was discarded", record.ran_after_discard_at),
    ):
        if moment is not None:
            yield label, format_html("{} ({})", text.moment(moment, now), text.absolute(moment))


def _step(step: Any) -> dict[str, Any]:
    attempt: Attempt = step.attempt
    is_act = attempt.kind in (DISCARDED, REQUEUED)  # by a user, who is stored as the worker
    return {
        "attempt": attempt,
        "number": "" if is_act else step.number,
        "kind": text.plain(attempt.kind, 20),
        "started": text.absolute(step.started_at),
        "started_iso": step.started_at.isoformat(),
        "runtime": text.duration(attempt.runtime_ms),
        "worker": text.hostile(attempt.worker, 255),
        "tier": text.EMPTY if attempt.tier is None else str(attempt.tier),
        "planned": text.delay(attempt.delay_ms),
        "actual": text.duration(step.waited_ms),
        "late": text.duration(step.late_ms) if step.late_ms is not None and step.late_ms > 0 else "",
        "error": text.hostile(attempt.exception_type, 255) if attempt.exception_type else "",
        "message": text.hostile(attempt.exception_message, 300) if attempt.exception_message else "",
        "frame": text.hostile(attempt.frame, 255) if attempt.frame else "",
        "reason": text.reason(attempt.reason) if attempt.reason and not is_act else "",
    }


def _group_text(record: TaskRecord) -> str:
    group = record.failure_group
    return text.plain(f"{group.exception_type}: {group.message}", text.IN_LIST) if group else ""


def _group_url(admin: ReadOnlyAdmin, request: HttpRequest, record: TaskRecord) -> str | None:
    number = record.failure_group_id
    return None if number is None else admin.page_url(request, FailureGroup, "change", number)


def _relatives(admin: ReadOnlyAdmin, request: HttpRequest, record: TaskRecord) -> Iterator[dict[str, Any]]:
    """Yield the related tasks by kind of relation, with links to the pages that the user may see."""
    shared = TaskRecord.objects.filter(task_id=record.task_id).exclude(pk=record.pk).exists()
    for label, key, value in (
        ("Same task id", "task_id", record.task_id if shared else ""),
        ("Root", "root_id", record.root_id),
        ("Parent", "task_id", record.parent_id),
        ("Canvas group", "canvas_id", record.canvas_id),
    ):
        if not value:
            continue
        found = list(_found(key, value, record))
        yield {
            "label": label,
            "value": text.hostile(value, 255),
            "tasks": [
                {
                    "url": admin.record_url(request, each),
                    "text": text.hostile(each, 200),
                    "state": text.state_badge(each.state),
                }
                for each in found
            ],
            "search": _search_url(admin, request, value) if key == "root_id" else None,
        }


def _found(key: str, value: str, record: TaskRecord) -> Iterator[TaskRecord]:
    wanted = Q(**{key: value}) | Q(task_id=value) if key == "root_id" else Q(**{key: value})
    rows = TaskRecord.objects.filter(wanted).exclude(pk=record.pk)
    yield from rows.only("task_id", "name", "state", *BELONGING).order_by("pk")[:MAX_RELATED]


def _search_url(admin: ReadOnlyAdmin, request: HttpRequest, value: str) -> str | None:
    url = admin.page_url(request, TaskRecord, "changelist")
    return f"{url}?q={quote(value)}" if url else None


def operations(admin: ReadOnlyAdmin, request: HttpRequest, record: TaskRecord) -> Iterator[dict[str, Any]]:
    """Yield the last `MAX_OPERATIONS` operations of a task, the latest first."""
    items = OperationItem.objects.filter(record_id=record.pk).exclude(operation__state=Operation.State.DRAFT)
    items = items.select_related("operation").order_by("-operation_id")
    for item in items[:MAX_OPERATIONS]:
        operation: Operation = item.operation
        yield {
            "what": operation.get_kind_display(),
            "by": text.hostile(operation.actor, 150),
            "why": text.hostile(operation.reason, 300) if operation.reason else "",
            "when": text.moment(item.finished_at or operation.created_at, timezone.now()),
            "outcome": text.outcome_badge(item.outcome),
            "detail": text.hostile(item.detail, 255) if item.detail else "",
            "url": admin.page_url(request, Operation, "change", operation.pk),
        }
