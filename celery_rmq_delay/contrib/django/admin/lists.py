"""The lists of parked, exhausted and all retried tasks."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.contrib import admin
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
from . import actions, filters, link_filters, message, text
from .base import EXHAUSTED_STATES, PARKED_STATES, outside_transactions
from .summary import SummarizedAdmin
from .task_page import found_task, history_context, task_page

#: Columns that the lists never show, and that may be long.
_DEFERRED = (
    "exception_message",
    "args_preview",
    "kwargs_preview",
    "ladder_ms",
    "exchange",
    "routing_key",
    "worker",
    "parent_id",
    "canvas_id",
    "delay_queue",
)
_NOTE = "_rmq_delay_search_note"


class RecordAdmin(SummarizedAdmin):
    """The base of the three lists: columns, search, the summary above the table, and the pages of one task."""

    search_fields = ("=task_id", "=root_id", "^name", "^exception_type", "exception_message", "args_preview")
    search_help_text = (
        "An id, the beginning of a task or error name, or words of messages and arguments (declin* finds beginnings)."
    )
    list_display_links = ("task",)
    sortable_by: ClassVar[Any] = ()

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
        """Return the list, with a note where the search may have missed tasks."""
        found: Any = super().get_changelist_instance(request)
        found.search_note = getattr(request, _NOTE, "")
        return found

    @outside_transactions
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list, or run an action."""
        more = {"search_everywhere": self._everywhere(request)} if request.method == "GET" else {}
        return super().changelist_view(request, {**more, **(extra_context or {})})

    def get_urls(self) -> list[Any]:
        """Return Django's URLs, and those that reveal and edit a message."""
        return [self.row_url("reveal", self.reveal_view), self.row_url("edit", self.edit_view), *super().get_urls()]

    def row_page(self, request: HttpRequest, object_id: str | None) -> HttpResponse:
        """Show one task."""
        return task_page(self, request, found_task(self, request, object_id))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the operations of a task, and Django's history with the entries from all three lists."""
        record = found_task(self, request, object_id)
        more = {**history_context(self, request, record), **(extra_context or {})}
        return super().history_view(request, str(record.pk), more)

    def reveal_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Log the reveal, then show a task with its unredacted message."""
        return message.reveal_view(self, request, object_id)

    @outside_transactions
    def edit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the form to edit arguments, or requeue the task with those of the form."""
        return message.edit_view(self, request, object_id)

    def _everywhere(self, request: HttpRequest) -> str | None:
        if self.model is TaskRecord or not request.GET.get("q"):
            return None
        return self.page_url(request, TaskRecord, "changelist")

    @admin.display(description="task")
    def task(self, record: TaskRecord) -> SafeString:
        """Return name and id."""
        badge = text.ran_badge(record.ran_after_discard_at)
        return format_html("{}{}{}", text.dotted(record.name, 120), text.in_line(record.task_id, 255), badge)

    @admin.display(description="state")
    def shown_state(self, record: TaskRecord) -> SafeString:
        """Return the state as text and icon."""
        return text.state_badge(record.state)

    @admin.display(description="queue")
    def shown_queue(self, record: TaskRecord) -> SafeString:
        """Return the origin queue."""
        return text.hostile(record.queue, 80)

    @admin.display(description="error")
    def error(self, record: TaskRecord) -> SafeString:
        """Return type and message of the last error."""
        if not record.exception_type and not _error_text(record):
            return SafeString(text.EMPTY)
        return format_html(
            '<span class="rmq-error">{}</span> {}',
            text.dotted(record.exception_type, 80),
            text.clamped(_error_text(record)),
        )

    @admin.display(description="attempts")
    def attempts(self, record: TaskRecord) -> SafeString:
        """Return the number of attempts and their maximum; below, how often the task was requeued."""
        most = "∞" if record.max_retries is None else str(record.max_retries + 1)
        shown = format_html('<span class="rmq-nowrap">{} / {}</span>', record.attempt + 1, most)
        again = f"requeued {record.generation} x"
        return _with_quiet(shown, again) if record.generation else shown

    @admin.display(description="next retry")
    def next_retry(self, record: TaskRecord) -> SafeString:
        """Return when it is due, marked if it is overdue; below, when it first failed."""
        now = timezone.now()
        late = record.state == TaskState.PARKED and record.due_at is not None and record.due_at < now - OVERDUE_AFTER
        shown = text.moment(record.due_at, now, "rmq-overdue" if late else "")
        if late:
            shown = format_html("{} {}", shown, text.badge("overdue", "warning", "bad"))
        return _with_first(shown, record, now)

    @admin.display(description="tier, queue")
    def tier_and_queue(self, record: TaskRecord) -> SafeString:
        """Return the tier and its delay, or an exact delay, which has no tier; below, the origin queue."""
        shown = SafeString(text.EMPTY)
        if record.tier is not None or record.delay_ms is not None:
            tier_index = "exact" if record.tier is None else f"{record.tier}"
            shown = format_html('<span class="rmq-nowrap">{} ({})</span>', tier_index, text.delay(record.delay_ms))
        return _with_quiet(shown, text.hostile(record.queue, 80))

    @admin.display(description="exhausted at")
    def shown_exhausted_at(self, record: TaskRecord) -> SafeString:
        """Return when it was exhausted; below, when it first failed."""
        now = timezone.now()
        return _with_first(text.moment(record.exhausted_at, now), record, now)

    @admin.display(description="changed")
    def changed(self, record: TaskRecord) -> SafeString:
        """Return when its state last changed."""
        return text.moment(record.changed_at, timezone.now())

    @admin.display(description="why, queue")
    def why_and_queue(self, record: TaskRecord) -> SafeString:
        """Return why it was exhausted; below, the origin queue."""
        return _with_quiet(format_html("<bdi>{}</bdi>", text.reason(record.reason)), text.hostile(record.queue, 80))

    @admin.display(description="group")
    def shown_group(self, record: TaskRecord) -> SafeString:
        """Return the failure group, with a link to its tasks."""
        group = record.failure_group
        if group is None:
            return SafeString(text.EMPTY)
        return format_html('<a href="?group={}" title="{}">#{}</a>', group.pk, text.plain(group, 200), group.pk)

    @admin.display(description="purge")
    def purge(self, record: TaskRecord) -> SafeString:
        """Return when ``rmq_delay_prune`` removes it."""
        settings = conf()
        days = {
            TaskState.EXHAUSTED: settings.keep_exhausted_days,
            TaskState.DISCARDED: settings.keep_discarded_days,
            TaskState.REQUEUED: settings.keep_exhausted_days if record.call_digest else settings.keep_recovered_days,
        }
        kept = settings.keeps(days.get(TaskState(record.state)))
        return SafeString(text.EMPTY) if kept is None else text.moment(record.changed_at + kept, timezone.now())


def _error_text(record: TaskRecord) -> str:
    found: str | None = getattr(record, "error_text", None)
    return record.exception_message if found is None else found


def _with_quiet(shown: SafeString, more: object) -> SafeString:
    """Return the text of a column with a quiet line below it."""
    return format_html('{}<span class="rmq-beneath">{}</span>', shown, more)


def _with_first(shown: SafeString, record: TaskRecord, now: datetime) -> SafeString:
    if record.first_failed_at is None:
        return shown
    first = text.moment(record.first_failed_at, now)
    return _with_quiet(shown, format_html("first failed {}", first))


class ParkedTaskAdmin(RecordAdmin):
    """The parked tasks, the next retry first."""

    ordering = ("due_at", "id")
    actions = actions.on(PARKED_STATES)
    list_display = ("shown_state", "task", "attempts", "next_retry", "tier_and_queue", "error")
    list_filter = (
        filters.ParkedStates,
        filters.DueFilter,
        filters.OverdueFilter,
        filters.QueueFilter,
        filters.TaskFilter,
        filters.ErrorFilter,
        filters.WorkerFilter,
        filters.ParkedWindow,
        filters.AttemptsFilter,
        filters.RequeuedFilter,
        link_filters.GroupFilter,
        link_filters.OperationFilter,
    )


class ExhaustedTaskAdmin(RecordAdmin):
    """The exhausted tasks, the newest first."""

    ordering = ("-exhausted_at", "-id")
    actions = actions.on(EXHAUSTED_STATES)
    list_display = ("task", "error", "attempts", "shown_exhausted_at", "why_and_queue", "shown_group", "purge")
    list_filter = (
        filters.ExhaustedStates,
        filters.QueueFilter,
        filters.TaskFilter,
        filters.ErrorFilter,
        filters.WorkerFilter,
        filters.ExhaustedWindow,
        filters.AttemptsFilter,
        filters.RequeuedFilter,
        link_filters.GroupFilter,
        link_filters.OperationFilter,
    )


class TaskRecordAdmin(RecordAdmin):
    """All tasks that were ever retried, in any state, the latest change first."""

    ordering = ("-changed_at", "-id")
    actions = actions.on(TaskState)
    list_display = ("shown_state", "task", "error", "attempts", "changed", "shown_queue", "shown_group")
    list_filter = (
        filters.AnyState,
        filters.QueueFilter,
        filters.TaskFilter,
        filters.ErrorFilter,
        filters.WorkerFilter,
        filters.ChangedWindow,
        filters.AttemptsFilter,
        filters.RequeuedFilter,
        link_filters.GroupFilter,
        link_filters.OperationFilter,
    )
