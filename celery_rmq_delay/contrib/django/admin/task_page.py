"""The page of one task: facts, error, attempts, traceback, message, related tasks and operations; and its history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html

from ....operations.preview import Preview
from ..conf import conf
from ..models import ExhaustedTask, FailureGroup, Operation, OperationItem, ParkedTask, TaskRecord, TaskState
from ..services import payloads
from ..services.operations.actions import ACTIONS
from . import text
from .attempts import parts, timeline
from .base import BELONGING, ReadOnlyAdmin, belongs, found

#: Maximum number of each on the page.
MAX_ATTEMPTS = 200
MAX_OPERATIONS = 50
MAX_RELATED = 20
HISTORY_PAGE = 100


def found_task(pages: ReadOnlyAdmin, object_id: str) -> TaskRecord:
    """Return a task that has a page here. Raises `Http404`."""
    record = found(TaskRecord.objects.select_related("failure_group"), object_id)
    if not belongs(record, pages.model):
        raise Http404
    return record


def task_page(
    pages: ReadOnlyAdmin, request: HttpRequest, record: TaskRecord, message: Preview | None = None
) -> HttpResponse:
    """Return the page of a task with ``message``, or else with its redacted message; its texts are bounded."""
    shown = message or payloads.preview(record)
    can_reveal = shown.redacted and shown.size > 0 and pages.allows(request, "view_payload")
    can_edit = conf().allow_edit and pages.allows(request, "edit_payload") and record.state == TaskState.EXHAUSTED
    names = pages.get_actions(request)
    acts = [act for act in ACTIONS if act.on_task_page and act.name in names and record.state in act.states]
    attempts = list(record.attempts.order_by("-generation", "-attempt", "-occurred_at", "-id")[:MAX_ATTEMPTS])[::-1]
    traceback = text.plain(next((each.traceback for each in reversed(attempts) if each.traceback), ""))
    ladder = record.ladder_ms if isinstance(record.ladder_ms, list) else []
    group = record.failure_group
    context = pages.page_context(
        request,
        text.plain(record.name, 120),
        original=record,
        record=record,
        state=format_html("{} {}", text.state_badge(record.state), text.ran_badge(record.ran_after_discard_at)),
        ladder=" → ".join(text.delay(each) for each in ladder[:100] if isinstance(each, int)),
        times=text.times(
            ("First failed", record.first_failed_at),
            ("Parked", record.parked_at),
            ("Next retry", record.due_at),
            ("Exhausted", record.exhausted_at),
            ("Recovered", record.recovered_at),
            ("State changed", record.changed_at),
            ("Ran after it was discarded", record.ran_after_discard_at),
        ),
        group_text=text.plain(f"{group.exception_type}: {group.message}", text.IN_LIST) if group else "",
        group_url=pages.page_url(request, FailureGroup, "change", group.pk) if group else None,
        steps=timeline(attempts),
        traceback=traceback,
        traceback_parts=parts(traceback),
        relatives=list(_relatives(pages, request, record)),
        operations=_operations(pages, request, record),
        message=shown,
        reveal_url=pages.here("reveal", record.pk) if can_reveal else None,
        edit_url=pages.here("edit", record.pk) if can_edit else None,
        acts=acts,
        barred=[] if record.call_digest else [act.name for act in acts if act.requeues],
        acts_url=pages.here("changelist"),
        history_url=pages.here("history", record.pk),
    )
    return TemplateResponse(request, "admin/rmq_delay/record.html", context)


def _relatives(pages: ReadOnlyAdmin, request: HttpRequest, record: TaskRecord) -> Iterator[dict[str, Any]]:
    """Yield the related tasks by kind of relation, with links to the pages that the user may see."""
    shared = TaskRecord.objects.filter(task_id=record.task_id).exclude(pk=record.pk).exists()
    everywhere = pages.page_url(request, TaskRecord, "changelist")
    for label, wanted, value in (
        ("Same task id", Q(task_id=record.task_id), record.task_id if shared else ""),
        ("Root", Q(root_id=record.root_id) | Q(task_id=record.root_id), record.root_id),
        ("Parent", Q(task_id=record.parent_id), record.parent_id),
        ("Canvas group", Q(canvas_id=record.canvas_id), record.canvas_id),
    ):
        if value:
            rows = TaskRecord.objects.filter(wanted).exclude(pk=record.pk).order_by("pk")
            rows = rows.only("task_id", "name", "state", *BELONGING)[:MAX_RELATED]
            yield {
                "label": label,
                "value": value,
                "tasks": [{"url": pages.record_url(request, each), "record": each} for each in rows],
                "search": f"{everywhere}?q={quote(value)}" if label == "Root" and everywhere else None,
            }


def _operations(pages: ReadOnlyAdmin, request: HttpRequest, record: TaskRecord) -> list[tuple[Any, str | None]]:
    """Return the last `MAX_OPERATIONS` operations of a task, the latest first, and their URLs."""
    items = OperationItem.objects.filter(record_id=record.pk).exclude(operation__state=Operation.State.DRAFT)
    items = items.select_related("operation").order_by("-operation_id")[:MAX_OPERATIONS]
    return [(item, pages.page_url(request, Operation, "change", item.operation_id)) for item in items]


def history_context(pages: ReadOnlyAdmin, request: HttpRequest, record: TaskRecord) -> dict[str, Any]:
    """Return the context of a task's history: its operations, and Django's log entries from all three lists."""
    kinds = ContentType.objects.get_for_models(TaskRecord, ParkedTask, ExhaustedTask, for_concrete_models=False)
    entries = LogEntry.objects.filter(object_id=str(record.pk), content_type__in=kinds.values())
    paginator = Paginator(entries.select_related("user").order_by("-action_time", "-pk"), HISTORY_PAGE)
    page = paginator.get_page(request.GET.get("p", 1))
    return {
        "operations": _operations(pages, request, record),
        "action_list": page,
        "page_range": paginator.get_elided_page_range(page.number),
        "pagination_required": paginator.count > HISTORY_PAGE,
        "title": text.plain(record, 120),
    }
