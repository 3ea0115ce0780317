"""The page of one task."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from ....operations.preview import Preview
from ..conf import conf
from ..models import ExhaustedTask, ParkedTask, TaskRecord, TaskState
from ..services import payloads
from ..services.operations.actions import ACTIONS
from . import text
from .base import ReadOnlyAdmin, belongs, found
from .detail import detail, operations

HISTORY_PAGE = 100


def found_task(pages: ReadOnlyAdmin, request: HttpRequest, object_id: str | None) -> TaskRecord:
    """Return a task that the user may see on these pages. Raises `PermissionDenied` or `Http404`."""
    if not pages.has_view_permission(request):
        raise PermissionDenied
    record = found(TaskRecord.objects.select_related("failure_group"), object_id)
    if not belongs(record, pages.model):
        raise Http404
    return record


def task_page(
    pages: ReadOnlyAdmin, request: HttpRequest, record: TaskRecord, message: Preview | None = None
) -> HttpResponse:
    """Return the page of a task with ``message``, or else with its redacted message."""
    shown = message or payloads.preview(record)
    can_reveal = shown.redacted and shown.size > 0 and pages.has_view_payload_permission(request)
    can_edit = conf().allow_edit and pages.has_edit_payload_permission(request) and record.state == TaskState.EXHAUSTED
    names = pages.get_actions(request)
    acts = [act for act in ACTIONS if act.on_task_page and act.name in names and record.state in act.states]
    context = pages.page_context(
        request,
        text.plain(record.name, 120),
        **detail(pages, request, record),
        original=record,
        message=message_context(shown),
        reveal_url=pages.here("reveal", record.pk) if can_reveal else None,
        edit_url=pages.here("edit", record.pk) if can_edit else None,
        acts=acts,
        barred=[] if record.call_digest else [act.name for act in acts if act.requeues],
        acts_url=pages.here("changelist"),
        history_url=pages.here("history", record.pk),
    )
    return TemplateResponse(request, "admin/rmq_delay/record.html", context)


def history_context(pages: ReadOnlyAdmin, request: HttpRequest, record: TaskRecord) -> dict[str, Any]:
    """Return the context of a task's history: its operations, and Django's log entries from all three lists."""
    kinds = ContentType.objects.get_for_models(TaskRecord, ParkedTask, ExhaustedTask, for_concrete_models=False)
    entries = LogEntry.objects.filter(object_id=str(record.pk), content_type__in=kinds.values())
    paginator = Paginator(entries.select_related("user").order_by("-action_time", "-pk"), HISTORY_PAGE)
    page = paginator.get_page(request.GET.get("p", 1))
    return {
        "operations": list(operations(pages, request, record)),
        "action_list": page,
        "page_range": paginator.get_elided_page_range(page.number),
        "pagination_required": paginator.count > HISTORY_PAGE,
        "title": text.plain(record, 120),
    }


def message_context(preview: Preview) -> dict[str, Any]:
    """Return a message for the template; control characters are replaced."""
    return {
        "args": text.plain(preview.args),
        "kwargs": text.plain(preview.kwargs),
        "problem": text.plain(preview.problem, 500),
        "size": preview.size,
        "content_type": text.plain(preview.content_type, 100),
        "redacted": preview.redacted,
        "headers": [
            {"name": text.hostile(each.name, 255), "value": text.plain(each.value, 2_000), "locked": each.locked}
            for each in preview.headers
        ],
        "deaths": [
            {
                "queue": text.hostile(each.queue, 255),
                "reason": text.hostile(each.reason, 40),
                "count": each.count,
                "exchange": text.hostile(each.exchange, 255),
                "keys": text.hostile(each.routing_keys, 255),
                "time": text.absolute(each.time) if each.time else text.EMPTY,
            }
            for each in preview.deaths
        ],
    }
