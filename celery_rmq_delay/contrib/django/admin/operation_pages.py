"""The pages of operations: progress, results, cancellation, and the buttons that continue or undo an ended one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Page, Paginator
from django.db.models import BigIntegerField, Case, Count, F, Q, When
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..models import FailureGroup, Operation, OperationItem, TaskRecord, TaskState
from ..queries import grouped
from ..services import clock
from ..services.operations import requests as operations
from ..services.operations.action import of_kind
from . import operation_text, text
from .base import Button, ReadOnlyAdmin, actor, column, found, log
from .filters import REST, OwnFilter, options_of

Kind, Outcome, State = Operation.Kind, OperationItem.Outcome, Operation.State

#: The order of the outcomes on the page: problems first.
ORDER = (
    Outcome.UNKNOWN, Outcome.FAILED, Outcome.UNTRIED, Outcome.SKIPPED, Outcome.PENDING, Outcome.OK, Outcome.CANCELLED,
)  # fmt: skip
#: Tasks of each outcome that the page lists first, and tasks of one page of an outcome.
SHOWN, PER_PAGE = 50, 200
_OVER = Q(state__in=[each for each in State if Operation(state=each).is_over])
_IS_OVER = Case(When(_OVER, then=1), default=0)
_TURN = Case(When(_OVER, then=-F("pk")), default=F("pk"), output_field=BigIntegerField())


class KindFilter(OwnFilter):
    """By kind of operation; those that change nothing, exports and reveals, are hidden unless they are chosen."""

    title = "what"
    parameter_name = "kind"
    options = {"all": ("With exports and reveals", Q()), **options_of("kind", Kind.choices)}

    def unchosen(self) -> Q:
        return ~Q(kind__in=(Kind.EXPORT, Kind.REVEAL))


class OperationStateFilter(OwnFilter):
    """By state; drafts were not confirmed."""

    title = parameter_name = "state"
    options = options_of("state", [each for each in State.choices if each[0] != State.DRAFT])


def _numbers(operation: Operation) -> SafeString:
    """Return how many are done, with a bar."""
    done = operation.requested - operation.remaining
    return format_html(
        '<progress value="{}" max="{}"></progress> <span class="rmq-nowrap">{} / {}</span>',
        done,
        max(1, operation.requested),
        grouped(done),
        grouped(operation.requested),
    )


def _result(operation: Operation) -> SafeString:
    """Return its result as text, or when it starts."""
    if operation.state == State.PENDING and operation.not_before is not None:
        return format_html("starts {}", text.moment(operation.not_before))
    return text.clamped(operation.message)


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

    what = column("what", lambda row: f"{row.get_kind_display()} ({grouped(row.requested)})")
    shown_state = column("state", lambda row: text.operation_badge(row.state))
    by = column("by", lambda row: text.hostile(row.actor, 60))
    why = column("why", lambda row: text.clamped(row.reason))
    numbers = column("done", _numbers)
    asked = column("requested", lambda row: text.moment(row.created_at))
    result = column("result", _result)

    def get_urls(self) -> list[Any]:
        return [self.row_url("cancel", self.cancel_view), *super().get_urls()]

    def row_page(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show one operation: its progress and the outcomes of its tasks."""
        operation = found(Operation.objects.all(), object_id)
        now = clock.now()
        outcomes = dict(operation.items.order_by().values_list("outcome").annotate(count=Count("pk")))
        may = self._may(request, operation.kind)
        context = self.page_context(
            request,
            f"{operation.get_kind_display()} #{operation.pk}",
            operation=operation,
            original=operation,
            done=operation.requested - operation.remaining,
            most=max(1, operation.requested),
            result=operation.message or operations.report(operation),
            times=text.times(
                ("Requested", operation.created_at),
                ("Starts not before", operation.not_before),
                ("Started", operation.started_at),
                ("Finished", operation.finished_at),
            ),
            outcomes=[(each, outcomes[each]) for each in Outcome.values if each in outcomes],
            items=list(self._items(request, operation, outcomes)),
            is_filtered="outcome" in request.GET,
            details=list(operation_text.in_words(operation)),
            is_going=not operation.is_over,
            waits_for=operation_text.waits_for(operation, now),
            time_left=operation_text.remaining_time(operation, now),
            canaries=operation_text.canary_note(operation) if operation.canary else "",
            cancel_url=self.here("cancel", operation.pk) if may and not operation.is_over else None,
            buttons=list(self._buttons(request, operation, outcomes)) if may and operation.is_over else [],
            related=list(self._related(operation)),
        )
        return TemplateResponse(request, "admin/rmq_delay/operation.html", context)

    def cancel_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Request the cancellation of an operation."""
        operation = found(Operation.objects.all(), object_id)
        if not self._may(request, operation.kind):
            raise PermissionDenied
        if operation.is_over:
            messages.warning(request, "The operation has already ended.")
        else:
            operations.cancel(operation, actor(request))
            log(request, "Cancelled", operation)
            messages.success(request, "The operation stops after the tasks that are in progress.")
        return HttpResponseRedirect(self.here("change", operation.pk))

    def _may(self, request: HttpRequest, kind: str) -> bool:
        """Return whether the user may start and cancel operations of a kind."""
        if kind == Kind.MUTE:
            return self.allows(request, "annotate")
        action = of_kind(kind)
        return action is not None and self.allows(request, action.permission)

    def _related(self, operation: Operation) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Yield label, texts and URLs of the operation that this one follows, and of those that follow it."""
        for label, rows in (
            ("Follows", Operation.objects.filter(followers=operation)),
            ("Followed by", operation.followers.order_by("pk")),
        ):
            if links := [(f"{row.get_kind_display()} #{row.pk}", self.here("change", row.pk)) for row in rows[:SHOWN]]:
                yield label, links

    def _items(
        self, request: HttpRequest, operation: Operation, outcomes: Mapping[str, int]
    ) -> Iterator[dict[str, Any]]:
        """Yield the tasks by outcome; only those of the query's ``outcome`` where it has one, in pages."""
        chosen = request.GET.get("outcome", "")
        is_chosen = chosen in Outcome.values
        for outcome in (Outcome(chosen),) if is_chosen else ORDER:
            count = outcomes.get(outcome, 0)
            if not count and not is_chosen:
                continue
            items: Any = operation.items.filter(outcome=outcome).select_related("record").order_by("position")
            page = _Paginator(items, count).get_page(request.GET.get("page")) if is_chosen else None
            rows = [(item, self.record_url(request, item.record)) for item in (items[:SHOWN] if page is None else page)]
            yield {
                "outcome": outcome,
                "rows": rows,
                "count": count,
                "has_more": page is None and count > len(rows),
                "links": [] if page is None else list(_links(page, outcome)),
            }

    def _buttons(self, request: HttpRequest, operation: Operation, outcomes: Mapping[str, int]) -> Iterator[Button]:
        """Yield the buttons that process the rest of an ended operation, or undo it."""
        if operation.kind == Kind.MUTE:
            yield from self._undo_of_mute(request, operation)
            return
        action, tasks = of_kind(operation.kind), self.page_url(request, TaskRecord, "changelist")
        if action is None or tasks is None:
            return
        rest = sum(outcomes.get(each, 0) for each in REST)
        if rest and action.again:
            failed, all_of_them = action.again
            label = failed if rest == outcomes.get(Outcome.FAILED) else all_of_them
            url = f"{tasks}?{urlencode({'operation': operation.pk, 'outcome': 'rest'})}"
            yield Button(url, "action", action.continued_by(operation), f"{label} ({grouped(rest)})")
        if action.undo and _has_left(operation, action.undo.state):
            query = {"state": action.undo.state.value, "operation": operation.pk, "outcome": "done"}
            yield Button(f"{tasks}?{urlencode(query)}", "action", action.undo.action, "Undo this")

    def _undo_of_mute(self, request: HttpRequest, operation: Operation) -> Iterator[Button]:
        groups: Any = operation.details.get("groups")
        muted = operation.details.get("muted")
        url = self.page_url(request, FailureGroup, "changelist")
        if url is not None and isinstance(muted, bool) and isinstance(groups, list):
            left = FailureGroup.objects.filter(pk__in=groups, muted=muted).values_list("pk", flat=True)
            if rows := tuple(left):
                yield Button(f"{url}?open=any", "action", "unmute" if muted else "mute", "Undo this", rows=rows)


def _has_left(operation: Operation, state: TaskState) -> bool:
    """Return whether tasks are still in the state in which the operation has left them."""
    done = operation.items.filter(outcome=Outcome.OK)
    return done.filter(record__operation=operation, record__state=state).exists()


class _Paginator(Paginator):  # type: ignore[type-arg] # Django 5.2 cannot be subscripted
    """Pages of rows whose number is known."""

    def __init__(self, rows: Any, count: int) -> None:
        super().__init__(rows, PER_PAGE)
        self._known = count

    @cached_property
    def count(self) -> int:
        """The number of rows, without a query."""
        return self._known


def _links(page: Page[Any], outcome: str) -> Iterator[tuple[str, str]]:
    """Yield number and URL of each page to link; the URL of this page and of a gap is empty."""
    if page.paginator.num_pages > 1:
        for each in page.paginator.get_elided_page_range(page.number):
            is_link = isinstance(each, int) and each != page.number
            yield str(each), f"?outcome={outcome}&page={each}" if is_link else ""
