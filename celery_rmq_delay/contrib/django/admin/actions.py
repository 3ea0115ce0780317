"""Admin actions: those with a confirmation page, and exports."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse

from ..services.actors import note_done
from ..services.export import CONTENT_TYPES, ExportFormat, export_rows
from . import log_entries
from .acts import DISCARD, GRADUALLY, REQUEUE, RESTORE, RUN_NOW, Kind
from .base import ReadOnlyAdmin
from .confirming import ask_or_run


@admin.action(description=RUN_NOW.label, permissions=["requeue"])
def run_now(pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
    """Send parked tasks to their origin queues before they are due."""
    return ask_or_run(pages, request, queryset, RUN_NOW)


@admin.action(description=REQUEUE.label, permissions=["requeue"])
def requeue(pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
    """Send exhausted tasks back to their origin queues."""
    return ask_or_run(pages, request, queryset, REQUEUE)


@admin.action(description=GRADUALLY.label, permissions=["requeue"])
def requeue_gradually(pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
    """Send exhausted tasks back: canaries first, then the others at a limited rate."""
    return ask_or_run(pages, request, queryset, GRADUALLY)


@admin.action(description=DISCARD.label, permissions=["discard"])
def discard(pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
    """Discard tasks: they do not run again unless they are restored."""
    return ask_or_run(pages, request, queryset, DISCARD)


@admin.action(description=RESTORE.label, permissions=["discard"])
def restore(pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
    """Make discarded tasks exhausted again."""
    return ask_or_run(pages, request, queryset, RESTORE)


@admin.action(description="Export as CSV", permissions=["view"])
def export_csv(pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> StreamingHttpResponse:
    """Return the tasks as a CSV file."""
    return _export(pages, request, queryset, "csv")


@admin.action(description="Export as JSON lines", permissions=["view"])
def export_jsonl(pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> StreamingHttpResponse:
    """Return the tasks as JSON lines."""
    return _export(pages, request, queryset, "jsonl")


def _export(
    pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any], form: ExportFormat
) -> StreamingHttpResponse:
    redacted = not pages.has_view_payload_permission(request)
    note_done(
        Kind.EXPORT,
        log_entries.actor(request),
        requested=queryset.count(),
        format=form,
        redacted=redacted,
        filters=request.GET.dict(),
        list=str(pages.opts.model_name),
    )
    answer = StreamingHttpResponse(
        export_rows(queryset, format=form, redacted=redacted), content_type=CONTENT_TYPES[form]
    )
    answer["Content-Disposition"] = f'attachment; filename="{pages.opts.model_name}.{form}"'
    answer["X-Content-Type-Options"] = "nosniff"
    return answer
