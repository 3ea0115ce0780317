"""The pages of operations: progress, results and cancellation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import BigIntegerField, Case, Count, F, Q, QuerySet, When
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..models import Operation, OperationItem
from ..queries import grouped
from ..services import clock
from ..services.operations import requests as operations
from . import log_entries, operation_next, operation_text, text
from .base import ReadOnlyAdmin, found
from .filters import OwnFilter
from .operation_items import SHOWN, item_groups
from .operation_waits import canary_note, remaining_time, waits_for

Kind = Operation.Kind
Outcome = OperationItem.Outcome

#: The value of the filter that shows every kind.
_ALL = "all"
#: Kinds that change nothing: the list shows them only where they are chosen.
_LOOKS = (Kind.EXPORT, Kind.REVEAL)
#: The states of operations that were confirmed.
_STATES = [(value, label) for value, label in Operation.State.choices if value != Operation.State.DRAFT]
_OVER = Q(state__in=[each for each in Operation.State if Operation(state=each).is_over])
_IS_OVER = Case(When(_OVER, then=1), default=0)
_TURN = Case(When(_OVER, then=-F("pk")), default=F("pk"), output_field=BigIntegerField())


class KindFilter(OwnFilter):
    """By kind of operation; exports and reveals are hidden unless they are chosen."""

    title = "what"
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return all kinds together, and each."""
        return [(_ALL, "With exports and reveals"), *Kind.choices]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the operations of the chosen kind, or those that change something."""
        return queryset.exclude(kind__in=_LOOKS) if self.value() is None else super().queryset(request, queryset)

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the operations of one kind, or of all."""
        if value == _ALL:
            return queryset
        return queryset.filter(kind=value) if value in Kind.values else None


class OperationStateFilter(OwnFilter):
    """By state."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the states."""
        return _STATES

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the operations of one state."""
        return queryset.filter(state=value) if value in dict(_STATES) else None


class OperationAdmin(ReadOnlyAdmin):
    """The operations: unfinished ones first, the oldest of them first; then the finished ones, the newest first."""

    ordering = (_IS_OVER, _TURN)
    list_display = ("what", "shown_state", "by", "why", "numbers", "asked", "result")
    list_display_links = ("what",)
    list_filter = (OperationStateFilter, KindFilter)
    search_fields = ("=actor",)
    search_help_text = "The name of the user who started it."
    sortable_by = ()
    actions = None

    @admin.display(description="what")
    def what(self, operation: Operation) -> str:
        """Return the kind of operation and its number of tasks."""
        return f"{operation.get_kind_display()} ({grouped(operation.requested)})"

    @admin.display(description="state")
    def shown_state(self, operation: Operation) -> SafeString:
        """Return its state as text and icon."""
        return text.operation_badge(operation.state)

    @admin.display(description="by")
    def by(self, operation: Operation) -> SafeString:
        """Return the user who started it."""
        return text.hostile(operation.actor, 60)

    @admin.display(description="why")
    def why(self, operation: Operation) -> SafeString:
        """Return the reason."""
        return text.clamped(operation.reason)

    @admin.display(description="done")
    def numbers(self, operation: Operation) -> SafeString:
        """Return how many are done, with a bar."""
        done = operation.requested - operation.remaining
        return format_html(
            '<progress value="{}" max="{}"></progress> <span class="rmq-nowrap">{} / {}</span>',
            done,
            max(1, operation.requested),
            grouped(done),
            grouped(operation.requested),
        )

    @admin.display(description="requested")
    def asked(self, operation: Operation) -> SafeString:
        """Return when it was requested."""
        return text.moment(operation.created_at, timezone.now())

    @admin.display(description="result")
    def result(self, operation: Operation) -> SafeString:
        """Return its result as text, or when it starts."""
        if operation.state == Operation.State.PENDING and operation.not_before is not None:
            return format_html("starts {}", text.moment(operation.not_before, timezone.now()))
        return text.clamped(operation.message)

    def get_urls(self) -> list[Any]:
        """Return Django's URLs, and the one that cancels an operation."""
        return [self.row_url("cancel", self.cancel_view), *super().get_urls()]

    def row_page(self, request: HttpRequest, object_id: str | None) -> HttpResponse:
        """Show one operation: its progress and the outcomes of its tasks."""
        operation = found(Operation.objects.all(), object_id)
        now = clock.now()
        outcomes = dict(
            OperationItem.objects.filter(operation=operation)
            .order_by()
            .values_list("outcome")
            .annotate(count=Count("pk"))
        )
        going, may = not operation.is_over, operation_next.may(self, request, operation.kind)
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
            outcomes=[
                (text.outcome_badge(each), grouped(outcomes[each]), f"?outcome={each}")
                for each in Outcome.values
                if each in outcomes
            ],
            items=list(item_groups(self, request, operation, outcomes)),
            is_filtered="outcome" in request.GET,
            details=[
                (text.plain(key, 80), text.plain(value, 5_000)) for key, value in operation_text.in_words(operation)
            ],
            is_going=going,
            waits_for=waits_for(operation, now),
            time_left=remaining_time(operation, now),
            canaries=canary_note(operation) if operation.canary else "",
            cancel_url=self.here("cancel", operation.pk) if going and may else None,
            buttons=list(operation_next.buttons(self, request, operation, outcomes)),
            related=list(self._related(operation)),
        )
        return TemplateResponse(request, "admin/rmq_delay/operation.html", context)

    def _related(self, operation: Operation) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Yield label, texts and URLs of the operation that this one follows, and of those that follow it."""
        for label, rows in (
            ("Follows", Operation.objects.filter(followers=operation)),
            ("Followed by", operation.followers.order_by("pk")),
        ):
            if links := [(f"{row.get_kind_display()} #{row.pk}", self.here("change", row.pk)) for row in rows[:SHOWN]]:
                yield label, links

    def cancel_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Request the cancellation of an operation."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        operation = found(Operation.objects.all(), object_id)
        if not operation_next.may(self, request, operation.kind):
            raise PermissionDenied
        if operation.is_over:
            self.message_user(request, "The operation has already ended.", messages.WARNING)
        else:
            operations.cancel(operation, log_entries.actor(request))
            log_entries.log(request, operation, "Cancelled")
            self.message_user(request, "The operation stops after the tasks that are in progress.", messages.SUCCESS)
        return HttpResponseRedirect(self.here("change", operation.pk))


def _times(operation: Operation) -> Iterator[tuple[str, SafeString]]:
    now = timezone.now()
    for label, moment in (
        ("Requested", operation.created_at),
        ("Starts not before", operation.not_before),
        ("Started", operation.started_at),
        ("Finished", operation.finished_at),
    ):
        if moment is not None:
            yield label, format_html("{} ({})", text.moment(moment, now), text.absolute(moment))
