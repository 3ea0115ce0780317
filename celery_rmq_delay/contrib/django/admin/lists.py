"""The lists of parked, exhausted and all retried tasks."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..conf import conf
from ..models import TaskRecord, TaskState
from ..queries import OVERDUE_AFTER
from ..services.searching import searched
from . import confirming, filters, message, text
from .base import EXHAUSTED_STATES, PARKED_STATES, column, outside_transactions
from .changelist import Reads
from .summary import SummarizedAdmin
from .task_page import found_task, history_context, task_page

#: Columns that the lists never show, and that may be long.
_DEFERRED = (
    "exception_message", "args_preview", "kwargs_preview", "ladder_ms", "exchange", "routing_key", "worker",
    "parent_id", "canvas_id", "delay_queue",
)  # fmt: skip
_NOTE = "_rmq_delay_search_note"


def _with_quiet(shown: str, more: object) -> SafeString:
    """Return the text of a column with a quiet line below it."""
    return format_html('{}<span class="rmq-beneath">{}</span>', shown, more)


def _with_first(shown: SafeString, record: TaskRecord) -> SafeString:
    if record.first_failed_at is None:
        return shown
    return _with_quiet(shown, format_html("first failed {}", text.moment(record.first_failed_at)))


def _task(record: TaskRecord) -> SafeString:
    badge = text.ran_badge(record.ran_after_discard_at)
    return format_html("{}{}{}", text.dotted(record.name, 120), text.in_line(record.task_id, 255), badge)


def _error(record: Any) -> SafeString:
    if not record.exception_type and not record.error_text:
        return SafeString(text.EMPTY)
    name = text.dotted(record.exception_type, 80)
    return format_html('<span class="rmq-error">{}</span> {}', name, text.clamped(record.error_text))


def _attempts(record: TaskRecord) -> SafeString:
    """Return the number of attempts and their maximum; below, how often the task was requeued."""
    most = "∞" if record.max_retries is None else str(record.max_retries + 1)
    shown = format_html('<span class="rmq-nowrap">{} / {}</span>', record.attempt + 1, most)
    return _with_quiet(shown, f"requeued {record.generation} x") if record.generation else shown


def _next_retry(record: TaskRecord) -> SafeString:
    """Return when it is due, marked if it is overdue; below, when it first failed."""
    late = record.state == TaskState.PARKED and record.due_at and record.due_at < timezone.now() - OVERDUE_AFTER
    shown = text.moment(record.due_at, "rmq-overdue" if late else "")
    if late:
        shown = format_html("{} {}", shown, text.badge("overdue", "warning", "bad"))
    return _with_first(shown, record)


def _tier_and_queue(record: TaskRecord) -> SafeString:
    """Return the tier and its delay, or an exact delay, which has no tier; below, the origin queue."""
    shown = SafeString(text.EMPTY)
    if record.tier is not None or record.delay_ms is not None:
        tier_index = "exact" if record.tier is None else f"{record.tier}"
        shown = format_html('<span class="rmq-nowrap">{} ({})</span>', tier_index, text.delay(record.delay_ms))
    return _with_quiet(shown, text.hostile(record.queue, 80))


def _why_and_queue(record: TaskRecord) -> SafeString:
    return _with_quiet(format_html("<bdi>{}</bdi>", text.reason(record.reason)), text.hostile(record.queue, 80))


def _group(record: TaskRecord) -> SafeString:
    """Return the failure group, with a link to its tasks."""
    group = record.failure_group
    if group is None:
        return SafeString(text.EMPTY)
    return format_html('<a href="?group={}" title="{}">#{}</a>', group.pk, text.plain(group, 200), group.pk)


def _purge(record: TaskRecord) -> SafeString:
    """Return when ``rmq_delay_prune`` removes it."""
    settings = conf()
    days = {
        TaskState.EXHAUSTED: settings.keep_exhausted_days,
        TaskState.DISCARDED: settings.keep_discarded_days,
        TaskState.REQUEUED: settings.keep_exhausted_days if record.call_digest else settings.keep_recovered_days,
    }
    kept = settings.keeps(days.get(TaskState(record.state)))
    return SafeString(text.EMPTY) if kept is None else text.moment(record.changed_at + kept)


class RecordAdmin(SummarizedAdmin):
    """The base of the three lists: columns, search, the summary above the table, and the pages of one task."""

    search_fields = ("=task_id", "=root_id", "^name", "^exception_type", "exception_message", "args_preview")
    search_help_text = (
        "An id, the beginning of a task or error name, or words of messages and arguments (declin* finds beginnings)."
    )
    list_display_links = ("task",)
    sortable_by: ClassVar[Any] = ()

    task = column("task", _task)
    shown_state = column("state", lambda record: text.state_badge(record.state))
    shown_queue = column("queue", lambda record: text.hostile(record.queue, 80))
    error = column("error", _error)
    attempts = column("attempts", _attempts)
    next_retry = column("next retry", _next_retry)
    tier_and_queue = column("tier, queue", _tier_and_queue)
    shown_exhausted_at = column("exhausted at", lambda record: _with_first(text.moment(record.exhausted_at), record))
    changed = column("changed", lambda record: text.moment(record.changed_at))
    why_and_queue = column("why, queue", _why_and_queue)
    shown_group = column("group", _group)
    purge = column("purge", _purge)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the tasks without long columns, but with the beginning of the error message."""
        error = Left("exception_message", text.IN_TITLE + 1)
        found: Any = super().get_queryset(request).annotate(error_text=error)
        short: QuerySet[Any] = found.defer(*_DEFERRED).select_related("failure_group")
        return short

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """Search with indexes only; see `searched`."""
        term = search_term.strip()
        if not term:
            return queryset, False
        found = searched(queryset, term)
        setattr(request, _NOTE, found.note)
        return found.rows, False

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        found: Any = super().get_changelist_instance(request)
        found.search_note = getattr(request, _NOTE, "")
        return found

    @outside_transactions
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        more: dict[str, Any] = {}
        if request.method == "GET" and request.GET.get("q") and self.model is not TaskRecord:
            more = {"search_everywhere": self.page_url(request, TaskRecord, "changelist")}
        return super().changelist_view(request, {**more, **(extra_context or {})})

    def get_urls(self) -> list[Any]:
        views = [
            self.row_url("reveal", self.reveal_view, "view_payload"),
            self.row_url("edit", self.edit_view, "edit_payload"),
        ]
        return [*views, *super().get_urls()]

    def row_page(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return task_page(self, request, found_task(self, object_id))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the operations of a task, and Django's history with the entries from all three lists."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        record = found_task(self, object_id)
        more = {**history_context(self, request, record), **(extra_context or {})}
        return super().history_view(request, str(record.pk), more)

    def reveal_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return message.reveal(self, request, found_task(self, object_id))

    @outside_transactions
    def edit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return message.edit_view(self, request, found_task(self, object_id))


class ParkedTaskAdmin(RecordAdmin):
    """The parked tasks, the next retry first."""

    ordering = ("due_at", "id")
    actions = confirming.on(PARKED_STATES)
    list_display = ("shown_state", "task", "attempts", "next_retry", "tier_and_queue", "error")
    list_filter = (
        filters.ParkedStates,
        filters.DueFilter,
        filters.OverdueFilter,
        *filters.SEEN,
        filters.window("parked", "parked_at", Reads.ROWS),
        *filters.COMMON,
    )


class ExhaustedTaskAdmin(RecordAdmin):
    """The exhausted tasks, the newest first."""

    ordering = ("-exhausted_at", "-id")
    actions = confirming.on(EXHAUSTED_STATES)
    list_display = ("task", "error", "attempts", "shown_exhausted_at", "why_and_queue", "shown_group", "purge")
    list_filter = (
        filters.ExhaustedStates,
        *filters.SEEN,
        filters.window("exhausted", "exhausted_at"),
        *filters.COMMON,
    )


class TaskRecordAdmin(RecordAdmin):
    """All tasks that were ever retried, in any state, the latest change first."""

    ordering = ("-changed_at", "-id")
    actions = confirming.on(TaskState)
    list_display = ("shown_state", "task", "error", "attempts", "changed", "shown_queue", "shown_group")
    list_filter = (filters.AnyState, *filters.SEEN, filters.window("changed", "changed_at"), *filters.COMMON)
