"""The pages of failure groups: similar failures, with their open tasks, notes and muted alerts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..conf import conf
from ..models import ExhaustedTask, FailureGroup, Operation, TaskRecord, TaskState
from ..queries import Capped, capped_counts, exhausted_since, last_hours
from ..services.actors import note_done
from . import log_entries, text
from .base import ReadOnlyAdmin, found
from .charts.hours import chart
from .filters import OwnFilter, parameters
from .summary import summary

MAX_NOTE = 5_000
WINDOWS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}


def _open_tasks() -> QuerySet[Any]:
    return TaskRecord.objects.filter(state=TaskState.EXHAUSTED)


class OpenFilter(OwnFilter):
    """Groups with open tasks by default, or all groups."""

    title = gettext_lazy("open tasks")
    parameter_name = "open"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the one choice beside the default."""
        return [("any", _("All groups"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the groups with open tasks, unless all groups are chosen."""
        if self.value() is None:
            return queryset.filter(Exists(_open_tasks().filter(failure_group=OuterRef("pk"))))
        return super().queryset(request, queryset)

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return all groups."""
        return queryset if value == "any" else None

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield both choices with their labels."""
        for value, label in ((None, _("With open tasks")), ("any", _("All groups"))):
            yield {
                "selected": self.value() == value,
                "query_string": changelist.get_query_string({"open": value}),
                "display": label,
            }


class MutedFilter(OwnFilter):
    """Muted groups, or the others."""

    title = gettext_lazy("alerts")
    parameter_name = "muted"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return both choices."""
        return [("1", _("Muted")), ("0", _("Not muted"))]

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the groups that are muted, or those that are not."""
        return queryset.filter(muted=value == "1") if value in ("0", "1") else None


class NoteForm(forms.Form):
    """The note on a group."""

    note = forms.CharField(
        label=gettext_lazy("Note"),
        required=False,
        max_length=MAX_NOTE,
        widget=forms.Textarea(attrs={"rows": 4, "cols": 60}),
    )


class Figures:
    """The counts of the groups on a page, in two queries for all of them."""

    def __init__(self, groups: Iterable[FailureGroup], now: datetime) -> None:
        rows = list(groups)
        tasks = _open_tasks()
        counted = {str(row.pk): tasks.filter(failure_group=row.pk) for row in rows}
        self.open: dict[str, Capped] = capped_counts(conf().count_cap, **counted) if rows else {}
        self.since = exhausted_since(
            [row.fingerprint for row in rows], {name: now - length for name, length in WINDOWS.items()}
        )


class FailureGroupAdmin(ReadOnlyAdmin):
    """The groups, the last seen first."""

    ordering = ("-last_seen", "-id")
    list_display = ("failure", "open_count", "last_hour", "last_day", "last_week", "first", "last", "shown_note")
    list_display_links = ("failure",)
    list_filter = (OpenFilter, MutedFilter)
    parameters = parameters(*list_filter)
    search_fields = ("^exception_type",)
    search_help_text = gettext_lazy("The beginning of an error's name.")
    sortable_by = ()
    actions = ("mute", "unmute")

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the list, with the figures of each row."""
        found = super().get_changelist_instance(request)
        found.result_list = list(found.result_list)
        figures = Figures(found.result_list, timezone.now())
        for group in found.result_list:
            group.figures = figures
        return found

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list below tiles, chart and broker counts."""
        more = {"summary": summary(self, request)} if request.method == "GET" else {}
        return super().changelist_view(request, {**more, **(extra_context or {})})

    @admin.display(description=gettext_lazy("failure"))
    def failure(self, group: FailureGroup) -> SafeString:
        """Return error, message and the place in the code."""
        return format_html(
            '<span class="rmq-error">{}</span> {}{}',
            text.dotted(group.exception_type, 120),
            text.clamped(group.message),
            text.in_line(group.frame, 120),
        )

    @admin.display(description=gettext_lazy("open"))
    def open_count(self, group: Any) -> SafeString:
        """Return the number of open tasks, with a link to them."""
        return format_html('<a href="{}">{}</a>', self._tasks_url(group), group.figures.open[str(group.pk)])

    @admin.display(description=gettext_lazy("1 h"))
    def last_hour(self, group: Any) -> int:
        """Return how many were exhausted in the last hour."""
        return self._since(group, "hour")

    @admin.display(description=gettext_lazy("24 h"))
    def last_day(self, group: Any) -> int:
        """Return how many were exhausted in the last day."""
        return self._since(group, "day")

    @admin.display(description=gettext_lazy("7 d"))
    def last_week(self, group: Any) -> int:
        """Return how many were exhausted in the last week."""
        return self._since(group, "week")

    @admin.display(description=gettext_lazy("first seen"))
    def first(self, group: FailureGroup) -> SafeString:
        """Return when it was first seen."""
        return text.moment(group.first_seen, timezone.now())

    @admin.display(description=gettext_lazy("last seen"))
    def last(self, group: FailureGroup) -> SafeString:
        """Return when it was last seen."""
        return text.moment(group.last_seen, timezone.now())

    @admin.display(description=gettext_lazy("note"))
    def shown_note(self, group: FailureGroup) -> SafeString:
        """Return the note, and whether alerts are muted."""
        note = text.hostile(group.note, 120) if group.note else SafeString("")
        return format_html("{} {}", text.badge(_("muted"), "minus", "quiet"), note) if group.muted else note

    def _since(self, group: Any, window: str) -> int:
        found: int = group.figures.since.get(group.fingerprint, {}).get(window, 0)
        return found

    def _tasks_url(self, group: FailureGroup) -> str:
        return f"{self._exhausted_url}?group={group.pk}"

    @property
    def _exhausted_url(self) -> str:
        exhausted = self.admin_site._registry.get(ExhaustedTask)
        return exhausted.here("changelist") if isinstance(exhausted, ReadOnlyAdmin) else ""

    @admin.action(description=gettext_lazy("Mute: no alerts"), permissions=["annotate"])
    def mute(self, request: HttpRequest, queryset: QuerySet[FailureGroup]) -> None:
        """Stop alerts about these groups."""
        self._set_muted(request, queryset, muted=True)

    @admin.action(description=gettext_lazy("Unmute"), permissions=["annotate"])
    def unmute(self, request: HttpRequest, queryset: QuerySet[FailureGroup]) -> None:
        """Send alerts about these groups again."""
        self._set_muted(request, queryset, muted=False)

    def _set_muted(self, request: HttpRequest, queryset: QuerySet[FailureGroup], *, muted: bool) -> None:
        groups = list(queryset.exclude(muted=muted)[: conf().inline_limit])
        FailureGroup.objects.filter(pk__in=[group.pk for group in groups]).update(muted=muted)
        what = _("Muted") if muted else _("Unmuted")
        for group in groups:
            log_entries.log(request, group, what)
        if groups:
            numbers = [group.pk for group in groups]
            note_done(
                Operation.Kind.MUTE,
                log_entries.actor(request),
                reason=what,
                requested=len(groups),
                groups=numbers,
                muted=muted,
            )
        count = len(groups)
        message = (
            ngettext("%(count)s group muted.", "%(count)s groups muted.", count)
            if muted
            else ngettext("%(count)s group unmuted.", "%(count)s groups unmuted.", count)
        )
        self.message_user(request, message % {"count": count}, messages.SUCCESS)

    def get_urls(self) -> list[Any]:
        """Return Django's URLs, and the one that saves a note."""
        return [self.row_url("note", self.note_view), *super().get_urls()]

    def row_page(self, request: HttpRequest, object_id: str | None) -> HttpResponse:
        """Show one group."""
        group = found(FailureGroup.objects.all(), object_id)
        note = text.plain(group.note, MAX_NOTE)
        now = timezone.now()
        figures = Figures([group], now)
        url = self.page_url(request, ExhaustedTask, "changelist")
        context = self.page_context(
            request,
            text.plain(group, 120),
            group=group,
            original=group,
            message=text.plain(group.message),
            frame=text.hostile(group.frame, 255),
            error=text.plain(group.exception_type, 255),
            first=text.moment(group.first_seen, now),
            last=text.moment(group.last_seen, now),
            open_count=figures.open[str(group.pk)],
            since=figures.since.get(group.fingerprint, dict.fromkeys(WINDOWS, 0)),
            tasks_url=f"{url}?group={group.pk}" if url else None,
            chart=chart(last_hours(now, group.fingerprint)),
            form=NoteForm(initial={"note": note}) if self.has_annotate_permission(request) else None,
            note=note,
            acts_url=self.here("changelist"),
            note_url=self.here("note", group.pk),
            history_url=self.here("history", group.pk),
        )
        return TemplateResponse(request, "admin/rmq_delay/group.html", context)

    def note_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Save the note on a group."""
        may = self.has_view_permission(request) and self.has_annotate_permission(request)
        if request.method != "POST" or not may:
            raise PermissionDenied
        group = found(FailureGroup.objects.all(), object_id)
        form = NoteForm(request.POST)
        if form.is_valid():
            FailureGroup.objects.filter(pk=group.pk).update(note=form.cleaned_data["note"])
            log_entries.log(request, group, _("Note changed"))
            details = {"groups": [group.pk], "before": group.note, "after": form.cleaned_data["note"]}
            note_done(Operation.Kind.MUTE, log_entries.actor(request), reason=_("Note changed"), requested=1, **details)
            self.message_user(request, _("The note was saved."), messages.SUCCESS)
        else:
            self.message_user(request, " ".join(str(each) for each in form.errors.get("note", [])), messages.ERROR)
        return HttpResponseRedirect(self.here("change", group.pk))
