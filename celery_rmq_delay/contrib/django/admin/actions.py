"""Admin actions: those with a confirmation page, and exports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse

from ..models import Operation
from ..services.actors import note_done
from ..services.export import CONTENT_TYPES, ExportFormat, export_rows
from ..services.operations.action import Action
from ..services.operations.actions import ACTIONS
from . import log_entries
from .base import ReadOnlyAdmin
from .confirming import ask_or_run


def _asking(action: Action) -> Callable[..., HttpResponse]:
    """Return the function that Django calls for an action."""

    def ask(pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
        return ask_or_run(pages, request, queryset, action)

    ask.__name__ = action.name
    ask.__doc__ = type(action).__doc__
    described: Callable[..., HttpResponse] = admin.action(description=action.label, permissions=[action.permission])(
        ask
    )
    return described


def on(states: Iterable[str]) -> tuple[Callable[..., Any], ...]:
    """Return the actions of a list of tasks in these states: those that apply to one of them, and the exports."""
    asking = [_asking(each) for each in ACTIONS if {*each.states} & {*states}]
    return (*asking, export_csv, export_jsonl)


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
        Operation.Kind.EXPORT,
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
