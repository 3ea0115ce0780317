"""The pages of operations: progress, results and cancellation."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import Operation, OperationItem
from ..services.operations import requests as operations
from . import log_entries, operation_text, text
from .base import ReadOnlyAdmin, found
from .filters import OwnFilter, parameters

Kind = Operation.Kind
Outcome = OperationItem.Outcome

#: The permission to cancel an operation: the same as to start one.
_STOPS = {
    Kind.RUN_NOW: "requeue",
    Kind.REQUEUE: "requeue",
    Kind.EDIT: "edit_payload",
    Kind.DISCARD: "discard",
    Kind.RESTORE: "discard",
}
#: The order of the outcomes on the page: problems first.
_ORDER = (Outcome.UNKNOWN, Outcome.FAILED, Outcome.SKIPPED, Outcome.PENDING, Outcome.OK, Outcome.CANCELLED)
#: Tasks of each outcome that the page lists.
SHOWN = 50
#: The page warns that no process may be running operations if one waits for longer.
_WAITS_LONG = timedelta(seconds=30)


class KindFilter(OwnFilter):
    """By kind of operation."""

    title = gettext_lazy("what")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the kinds."""
        return list(Kind.choices)

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the operations of one kind."""
        return queryset.filter(kind=value) if value in Kind.values else None


class OperationStateFilter(OwnFilter):
    """By state."""

    title = gettext_lazy("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the states."""
        return list(Operation.State.choices)

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the operations of one state."""
        return queryset.filter(state=value) if value in Operation.State.values else None


class OperationAdmin(ReadOnlyAdmin):
    """The operations, the newest first."""

    ordering = ("-id",)
    list_display = ("what", "shown_state", "by", "why", "numbers", "asked", "result")
    list_display_links = ("what",)
    list_filter = (OperationStateFilter, KindFilter)
    parameters = parameters(*list_filter)
    search_fields = ("=actor",)
    search_help_text = gettext_lazy("The name of the user who started it.")
    sortable_by = ()
    actions = None

    @admin.display(description=gettext_lazy("what"))
    def what(self, operation: Operation) -> str:
        """Return the kind of operation and its number of tasks."""
        return f"{operation.get_kind_display()} ({operation.requested})"

    @admin.display(description=gettext_lazy("state"))
    def shown_state(self, operation: Operation) -> SafeString:
        """Return its state as text and icon."""
        return text.operation_badge(operation.state)

    @admin.display(description=gettext_lazy("by"))
    def by(self, operation: Operation) -> SafeString:
        """Return the user who started it."""
        return text.hostile(operation.actor, 60)

    @admin.display(description=gettext_lazy("why"))
    def why(self, operation: Operation) -> SafeString:
        """Return the reason."""
        return text.clamped(operation.reason)

    @admin.display(description=gettext_lazy("done"))
    def numbers(self, operation: Operation) -> SafeString:
        """Return how many are done, with a bar."""
        done = operation.requested - operation.remaining
        return format_html(
            '<progress value="{}" max="{}"></progress> <span class="rmq-nowrap">{} / {}</span>',
            done,
            max(1, operation.requested),
            done,
            operation.requested,
        )

    @admin.display(description=gettext_lazy("requested"))
    def asked(self, operation: Operation) -> SafeString:
        """Return when it was requested."""
        return text.moment(operation.created_at, timezone.now())

    @admin.display(description=gettext_lazy("result"))
    def result(self, operation: Operation) -> SafeString:
        """Return its result as text."""
        return text.clamped(operation.message)

    def get_urls(self) -> list[Any]:
        """Return Django's URLs, and the one that cancels an operation."""
        return [self.row_url("cancel", self.cancel_view), *super().get_urls()]

    def may_cancel(self, request: HttpRequest, operation: Operation) -> bool:
        """Return whether the user may cancel an operation: it needs the permission to start one."""
        needed = _STOPS.get(Kind(operation.kind))
        return needed is not None and bool(getattr(self, f"has_{needed}_permission")(request))

    def row_page(self, request: HttpRequest, object_id: str | None) -> HttpResponse:
        """Show one operation: its progress and the outcomes of its tasks."""
        operation = found(Operation.objects.all(), object_id)
        now = timezone.now()
        outcomes = dict(
            OperationItem.objects.filter(operation=operation)
            .order_by()
            .values_list("outcome")
            .annotate(count=Count("pk"))
        )
        going = not operation.is_over
        context = self.page_context(
            request,
            f"{operation.get_kind_display()} #{operation.pk}",
            operation=operation,
            original=operation,
            badge=text.operation_badge(operation.state),
            done=operation.requested - operation.remaining,
            most=max(1, operation.requested),
            by=text.hostile(operation.actor, 150),
            reason=text.plain(operation.reason, 1_000),
            result=text.plain(operation.message or operations.report(operation), 2_000),
            times=list(_times(operation)),
            outcomes=[(text.outcome_badge(each), outcomes[each]) for each in Outcome.values if each in outcomes],
            items=list(self._items(request, operation, outcomes)),
            details=[
                (text.plain(key, 80), text.plain(value, 5_000)) for key, value in operation_text.in_words(operation)
            ],
            is_going=going,
            waits_long=operation.state == Operation.State.PENDING and operation.created_at < now - _WAITS_LONG,
            cancel_url=self.here("cancel", operation.pk) if going and self.may_cancel(request, operation) else None,
            shown=SHOWN,
        )
        return TemplateResponse(request, "admin/rmq_delay/operation.html", context)

    def _items(self, request: HttpRequest, operation: Operation, outcomes: dict[str, int]) -> Iterator[dict[str, Any]]:
        """Yield the tasks by outcome."""
        for outcome in _ORDER:
            if outcome not in outcomes:
                continue
            items = OperationItem.objects.filter(operation=operation, outcome=outcome).select_related("record")
            rows = [
                {
                    "url": self.record_url(request, item.record),
                    "task": text.hostile(item.record, 200),
                    "is_canary": item.is_canary,
                    "detail": text.hostile(item.detail, 255) if item.detail else "",
                    "state": text.state_badge(item.record.state),
                }
                for item in items.order_by("position")[:SHOWN]
            ]
            yield {"badge": text.outcome_badge(outcome), "rows": rows, "rest": outcomes[outcome] - len(rows)}

    def cancel_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Request the cancellation of an operation."""
        if request.method != "POST" or not self.has_view_permission(request):
            raise PermissionDenied
        operation = found(Operation.objects.all(), object_id)
        if not self.may_cancel(request, operation):
            raise PermissionDenied
        if operation.is_over:
            self.message_user(request, _("The operation has already ended."), messages.WARNING)
        else:
            operations.cancel(operation, log_entries.actor(request))
            log_entries.log(request, operation, _("Cancelled"))
            self.message_user(request, _("The operation stops after the tasks that are in progress."), messages.SUCCESS)
        return HttpResponseRedirect(self.here("change", operation.pk))


def _times(operation: Operation) -> Iterator[tuple[str, SafeString]]:
    now = timezone.now()
    for label, moment in (
        (_("Requested"), operation.created_at),
        (_("Started"), operation.started_at),
        (_("Finished"), operation.finished_at),
    ):
        if moment is not None:
            yield label, format_html("{} ({})", text.moment(moment, now), text.absolute(moment))
