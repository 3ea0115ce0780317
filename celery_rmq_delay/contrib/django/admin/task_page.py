"""The page of one task."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from ..models import ExhaustedTask, ParkedTask, TaskRecord
from . import text
from .acts import ACTS
from .base import ReadOnlyAdmin, belongs, found
from .detail import detail

HISTORY_PAGE = 100


class RecordPages(ReadOnlyAdmin):
    """Detail and history of a task, for any of the three lists."""

    def row_page(self, request: HttpRequest, object_id: str | None) -> HttpResponse:
        """Show one task."""
        return self.record_page(request, self.found(request, object_id or ""))

    def found(self, request: HttpRequest, object_id: str) -> TaskRecord:
        """Return a task that the user may see on this page. Raises `PermissionDenied` or `Http404`."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        record = found(TaskRecord.objects.select_related("group"), object_id)
        if not belongs(record, self.model):
            raise Http404
        return record

    def record_page(self, request: HttpRequest, record: TaskRecord, **more: Any) -> HttpResponse:
        """Return the page of a task."""
        context = self.page_context(
            request, text.plain(record.name, 120), **detail(self, request, record), **more, original=record
        )
        names = self.get_actions(request)
        context["acts"] = [act for act in ACTS if act.name in names and record.state in act.states]
        context["acts_url"] = self.here("changelist")
        context["history_url"] = self.here("history", record.pk)
        return TemplateResponse(request, "admin/rmq_delay/record.html", context)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show Django's history of a task, whichever of its lists it was acted on from."""
        record = self.found(request, object_id)
        kinds = ContentType.objects.get_for_models(TaskRecord, ParkedTask, ExhaustedTask, for_concrete_models=False)
        entries = LogEntry.objects.filter(object_id=str(record.pk), content_type__in=kinds.values())
        pages = Paginator(entries.select_related("user").order_by("-action_time", "-pk"), HISTORY_PAGE)
        page = pages.get_page(request.GET.get("p", 1))
        more = {
            "action_list": page,
            "page_range": pages.get_elided_page_range(page.number),
            "pagination_required": pages.count > HISTORY_PAGE,
            "title": text.plain(record, 120),
        }
        return super().history_view(request, str(record.pk), {**more, **(extra_context or {})})
