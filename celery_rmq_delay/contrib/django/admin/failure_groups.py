"""The pages of failure groups: similar failures, with their open tasks, notes and muted alerts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..models import ExhaustedTask, FailureGroup, Operation, TaskRecord, TaskState
from ..queries import GroupFigures, among, group_figures, grouped, plural, with_open_tasks
from ..services.actors import note_done
from . import group_acts, log_entries, text
from .base import found, with_query
from .charts.hours import chart, small_chart
from .filters import OwnFilter
from .summary import SummarizedAdmin

MAX_NOTE = 5_000
#: The most groups whose tasks one list shows: their numbers are in its URL.
MOST_SHOWN = 100
WINDOWS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}


class OpenFilter(OwnFilter):
    """Groups with open tasks by default, or all groups."""

    title = "open tasks"
    parameter_name = "open"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the one choice beside the default."""
        return [("any", "All groups")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the groups with open tasks, unless all groups are chosen."""
        if self.value() is None:
            tasks = TaskRecord.objects.filter(state=TaskState.EXHAUSTED, failure_group=OuterRef("pk"))
            return queryset.filter(Exists(tasks))
        return super().queryset(request, queryset)

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return all groups."""
        return queryset if value == "any" else None

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield both choices with their labels."""
        for value, label in ((None, "With open tasks"), ("any", "All groups")):
            yield {
                "selected": self.value() == value,
                "query_string": changelist.get_query_string({"open": value}),
                "display": label,
            }


class MutedFilter(OwnFilter):
    """Muted groups, or the others."""

    title = "alerts"
    parameter_name = "muted"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return both choices."""
        return [("1", "Muted"), ("0", "Not muted")]

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the groups that are muted, or those that are not."""
        return queryset.filter(muted=value == "1") if value in ("0", "1") else None


class NoteForm(forms.Form):
    """The note on a group."""

    note = forms.CharField(
        label="Note",
        required=False,
        max_length=MAX_NOTE,
        widget=forms.Textarea(attrs={"rows": 4, "cols": 60}),
    )


def in_words(figures: GroupFigures) -> str:
    """Return how many tasks of a group were exhausted in each of `WINDOWS`."""
    return "{hour} in 1 h, {day} in 24 h, {week} in 7 days".format(
        **{name: grouped(count) for name, count in figures.exhausted.items()}
    )


class FailureGroupAdmin(SummarizedAdmin):
    """The groups, the one with the most open tasks first; a row has much more on it than those of other lists."""

    list_per_page = 25
    list_display = ("failure", "open_count", "acts", "exhausted", "seen", "shown_note")
    list_display_links = ("failure",)
    list_filter = (OpenFilter, MutedFilter)
    search_fields = ("^exception_type",)
    search_help_text = "The beginning of an error's name."
    sortable_by = ()
    actions = ("show_tasks", "mute", "unmute")
    change_list_template = "admin/rmq_delay/groups.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[FailureGroup]:
        """Return the groups with the numbers of their open tasks."""
        return with_open_tasks(FailureGroup.objects.all())

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the order: the most open tasks, then the last seen."""
        return ("-open_tasks", "-last_seen", "-id")

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the list, with the figures and buttons of each row."""
        found = super().get_changelist_instance(request)
        found.result_list = list(found.result_list)
        fingerprints = [group.fingerprint for group in found.result_list]
        figures, acts = group_figures(timezone.now(), fingerprints, WINDOWS), group_acts.GroupActs(self, request)
        for group in found.result_list:
            group.figures, group.tasks_url = figures[group.fingerprint], acts.tasks_url(group)
            group.buttons = group_acts.in_row([*acts.on_tasks(group), *acts.on_alerts(group)], group)
        return found

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list below the summary."""
        more = {"acts_form": group_acts.FORM, "from_groups": request.GET.urlencode()}
        return super().changelist_view(request, {**more, **(extra_context or {})})

    @admin.display(description="failure")
    def failure(self, group: FailureGroup) -> SafeString:
        """Return error, message and the place in the code."""
        return format_html(
            '<span class="rmq-error">{}</span> {}{}',
            text.dotted(group.exception_type, 120),
            text.clamped(group.message),
            text.in_line(group.frame, 120),
        )

    @admin.display(description="open")
    def open_count(self, group: Any) -> SafeString:
        """Return the number of open tasks, with a link to them."""
        count = grouped(group.open_tasks)
        return format_html('<a href="{}">{}</a>', group.tasks_url, count) if group.tasks_url else SafeString(count)

    @admin.display(description="exhausted")
    def exhausted(self, group: Any) -> SafeString:
        """Return the last 24 hours as small bars; below, the sums of an hour, a day and a week."""
        shown = small_chart(group.figures.hours)
        return format_html('{}<span class="rmq-beneath">{}</span>', shown, in_words(group.figures))

    @admin.display(description="last seen")
    def seen(self, group: FailureGroup) -> SafeString:
        """Return when it was last seen; below, when it was first seen."""
        now = timezone.now()
        first = format_html("first seen {}", text.moment(group.first_seen, now))
        return format_html('{}<span class="rmq-beneath">{}</span>', text.moment(group.last_seen, now), first)

    @admin.display(description="note")
    def shown_note(self, group: FailureGroup) -> SafeString:
        """Return the note, and whether alerts are muted."""
        note = text.hostile(group.note, 120) if group.note else SafeString("")
        return format_html("{} {}", text.badge("muted", "minus", "quiet"), note) if group.muted else note

    @admin.display(description="actions")
    def acts(self, group: Any) -> SafeString:
        """Return the buttons that act on all open tasks of the group, and the one that mutes it."""
        return format_html('<span class="rmq-row-acts">{}</span>', group.buttons)

    @admin.action(description="Show the open tasks", permissions=["view"])
    def show_tasks(self, request: HttpRequest, queryset: QuerySet[FailureGroup]) -> HttpResponse | None:
        """Open the list of the open tasks of these groups, where an action can select all of them."""
        url = self.page_url(request, ExhaustedTask, "changelist")
        if url is None:
            raise PermissionDenied
        numbers = list(queryset.values_list("pk", flat=True)[: MOST_SHOWN + 1])
        if len(numbers) > MOST_SHOWN:
            message = f"Select at most {MOST_SHOWN} groups."
            self.message_user(request, message, messages.WARNING)
            return None
        return HttpResponseRedirect(
            f"{url}?group={','.join(map(str, numbers))}" if numbers else request.get_full_path()
        )

    @admin.action(description="Mute: no alerts", permissions=["annotate"])
    def mute(self, request: HttpRequest, queryset: QuerySet[FailureGroup]) -> None:
        """Stop alerts about these groups."""
        self._set_muted(request, queryset, muted=True)

    @admin.action(description="Unmute", permissions=["annotate"])
    def unmute(self, request: HttpRequest, queryset: QuerySet[FailureGroup]) -> None:
        """Send alerts about these groups again."""
        self._set_muted(request, queryset, muted=False)

    def _set_muted(self, request: HttpRequest, queryset: QuerySet[FailureGroup], *, muted: bool) -> None:
        # By their ids, as the query of the list would count the open tasks of each group.
        chosen = FailureGroup.objects.filter(pk__in=queryset.order_by().values("pk")).exclude(muted=muted)
        groups = list(chosen.order_by("pk"))
        numbers = [group.pk for group in groups]
        what = "Muted" if muted else "Unmuted"
        if groups:
            FailureGroup.objects.filter(among(numbers, chosen.db)).update(muted=muted)
            log_entries.log_all(request, groups, what)
            note_done(
                Operation.Kind.MUTE,
                log_entries.actor(request),
                reason=what,
                requested=len(groups),
                groups=numbers,
                muted=muted,
            )
        count = len(groups)
        message = f"{grouped(count)} {plural(count, 'group', 'groups')} {what.lower()}."
        self.message_user(request, message, messages.SUCCESS)

    def get_urls(self) -> list[Any]:
        """Return Django's URLs, and those that save a note and mute."""
        return [self.row_url("note", self.note_view), self.row_url("mute", self.mute_view), *super().get_urls()]

    def row_page(self, request: HttpRequest, object_id: str | None) -> HttpResponse:
        """Show one group."""
        group: Any = found(self.get_queryset(request), object_id)
        note = text.plain(group.note, MAX_NOTE)
        now = timezone.now()
        figures = group_figures(now, [group.fingerprint], WINDOWS)[group.fingerprint]
        acts = group_acts.GroupActs(self, request)
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
            open_count=grouped(group.open_tasks),
            exhausted=in_words(figures),
            tasks_url=acts.tasks_url(group),
            chart=chart(figures.hours),
            form=NoteForm(initial={"note": note}) if self.has_annotate_permission(request) else None,
            note=note,
            task_buttons=acts.on_tasks(group),
            mute_buttons=acts.on_alerts(group),
            from_groups="",
            note_url=self.here("note", group.pk),
            history_url=self.here("history", group.pk),
        )
        return TemplateResponse(request, "admin/rmq_delay/group.html", context)

    def note_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Save the note on a group."""
        group = self._annotated(request, object_id)
        form = NoteForm(request.POST)
        if form.is_valid():
            FailureGroup.objects.filter(pk=group.pk).update(note=form.cleaned_data["note"])
            log_entries.log(request, group, "Note changed")
            details = {"groups": [group.pk], "before": group.note, "after": form.cleaned_data["note"]}
            note_done(Operation.Kind.MUTE, log_entries.actor(request), reason="Note changed", requested=1, **details)
            self.message_user(request, "The note was saved.", messages.SUCCESS)
        else:
            self.message_user(request, " ".join(str(each) for each in form.errors.get("note", [])), messages.ERROR)
        return HttpResponseRedirect(self.here("change", group.pk))

    def mute_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Mute a group or unmute it, and return to the page that this was started from."""
        group = self._annotated(request, object_id)
        muted = request.POST.get("muted")
        if muted not in ("0", "1"):
            raise BadRequest("muted is missing or invalid: send 1 to mute the group, 0 to unmute it.")
        self._set_muted(request, FailureGroup.objects.filter(pk=group.pk), muted=muted == "1")
        query = request.POST.get("from_groups")
        return HttpResponseRedirect(
            self.here("change", group.pk) if query is None else with_query(self.here("changelist"), query)
        )

    def _annotated(self, request: HttpRequest, object_id: str) -> FailureGroup:
        """Return the group of a request that changes it. Raises `PermissionDenied` or `Http404`."""
        may = self.has_view_permission(request) and self.has_annotate_permission(request)
        if not may:
            raise PermissionDenied
        return found(FailureGroup.objects.all(), object_id)
