"""The pages of failure groups: similar failures, with their open tasks, notes and muted alerts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from ..models import ExhaustedTask, FailureGroup, Operation, TaskRecord, TaskState
from ..queries import GroupFigures, among, group_figures, grouped, plural, with_open_tasks
from ..services.actors import note_done
from ..services.operations.actions import ACTIONS
from . import text
from .base import Button, ReadOnlyAdmin, actor, column, found, log, with_query
from .charts import chart, small_chart
from .filters import OwnFilter
from .summary import SummarizedAdmin

MAX_NOTE = 5_000
#: The most groups whose tasks one list shows: their numbers are in its URL.
MOST_SHOWN = 100
WINDOWS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}
#: The form on the list that the buttons of its rows belong to.
FORM = "rmq-group-acts"
_BUTTON = (
    '<button type="submit" class="{}" form="{}" formaction="{}" name="{}" value="{}" aria-label="{}: {}">{}</button>'
)


class OpenFilter(OwnFilter):
    """Groups with open tasks by default, or all groups."""

    title = "open tasks"
    parameter_name = "open"
    options = {"any": ("All groups", Q())}

    def unchosen(self) -> Q:
        return Q(Exists(TaskRecord.objects.filter(state=TaskState.EXHAUSTED, failure_group=OuterRef("pk"))))

    def choices(self, changelist: Any) -> Iterator[Any]:
        for value, label in ((None, "With open tasks"), ("any", "All groups")):
            query = changelist.get_query_string({"open": value})
            yield {"selected": self.value() == value, "query_string": query, "display": label}


class MutedFilter(OwnFilter):
    """Muted groups, or the others."""

    title = "alerts"
    parameter_name = "muted"
    options = {"1": ("Muted", Q(muted=True)), "0": ("Not muted", Q(muted=False))}


class NoteForm(forms.Form):
    """The note on a group."""

    note = forms.CharField(required=False, max_length=MAX_NOTE, widget=forms.Textarea({"rows": 4, "cols": 60}))


def in_words(figures: GroupFigures) -> str:
    """Return how many tasks of a group were exhausted in each of `WINDOWS`."""
    counts = {name: grouped(count) for name, count in figures.exhausted.items()}
    return "{hour} in 1 h, {day} in 24 h, {week} in 7 days".format(**counts)


class GroupActs:
    """What a user may do with failure groups; the permissions are read once for all rows of a page."""

    def __init__(self, pages: ReadOnlyAdmin, request: HttpRequest) -> None:
        self._pages = pages
        self._tasks = pages.page_url(request, ExhaustedTask, "changelist")
        names: Any = pages.admin_site._registry[ExhaustedTask].get_actions(request) if self._tasks else ()
        self._acts = [each for each in ACTIONS if TaskState.EXHAUSTED in each.states and each.name in names]
        self._may_mute = pages.allows(request, "annotate")

    def tasks_url(self, group: FailureGroup) -> str | None:
        """Return the URL of the group's open tasks; None if the user may not see them."""
        return f"{self._tasks}?group={group.pk}" if self._tasks else None

    def on_tasks(self, group: Any) -> list[Button]:
        """Return the actions on the group's open tasks that the user may start; each leads to its confirmation page.

        ``group`` is annotated by `with_open_tasks`.
        """
        url = self.tasks_url(group)
        if url is None or not group.open_tasks:
            return []
        return [
            Button(url, "action", act.name, f"{act.label}…", "button rmq-danger" if act.dangerous else "button")
            for act in self._acts
        ]

    def on_alerts(self, group: FailureGroup) -> list[Button]:
        """Return the button that mutes the group, or unmutes it; none without permission."""
        if not self._may_mute:
            return []
        value, label = ("0", "Unmute") if group.muted else ("1", "Mute")
        return [Button(self._pages.here("mute", group.pk), "muted", value, label)]

    def in_row(self, group: FailureGroup) -> SafeString:
        """Return the buttons of a row; for screen readers each names the group."""
        named = text.plain(group, 80)
        buttons = (
            (each.css, FORM, each.url, each.name, each.value, each.label, named, each.label)
            for each in (*self.on_tasks(group), *self.on_alerts(group))
        )
        return format_html('<span class="rmq-row-acts">{}</span>', format_html_join(" ", _BUTTON, buttons))


def _failure(group: FailureGroup) -> SafeString:
    """Return error, message and the place in the code."""
    return format_html(
        '<span class="rmq-error">{}</span> {}{}',
        text.dotted(group.exception_type, 120),
        text.clamped(group.message),
        text.in_line(group.frame, 120),
    )


def _open_count(group: Any) -> SafeString:
    count = grouped(group.open_tasks)
    return format_html('<a href="{}">{}</a>', group.tasks_url, count) if group.tasks_url else SafeString(count)


def _exhausted(group: Any) -> SafeString:
    """Return the last 24 hours as small bars; below, the sums of an hour, a day and a week."""
    shown = small_chart(group.figures.hours)
    return format_html('{}<span class="rmq-beneath">{}</span>', shown, in_words(group.figures))


def _seen(group: FailureGroup) -> SafeString:
    """Return when it was last seen; below, when it was first seen."""
    last, first = text.moment(group.last_seen), text.moment(group.first_seen)
    return format_html('{}<span class="rmq-beneath">first seen {}</span>', last, first)


def _note(group: FailureGroup) -> SafeString:
    """Return the note, and whether alerts are muted."""
    note = text.hostile(group.note, 120) if group.note else SafeString("")
    return format_html("{} {}", text.badge("muted", "minus", "quiet"), note) if group.muted else note


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

    failure = column("failure", _failure)
    open_count = column("open", _open_count)
    exhausted = column("exhausted", _exhausted)
    seen = column("last seen", _seen)
    shown_note = column("note", _note)
    acts = column("actions", lambda group: group.buttons)

    def get_queryset(self, request: HttpRequest) -> QuerySet[FailureGroup]:
        """Return the groups with the numbers of their open tasks."""
        return with_open_tasks(FailureGroup.objects.all())

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        return ("-open_tasks", "-last_seen", "-id")

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the list, with the figures and buttons of each row."""
        found = super().get_changelist_instance(request)
        found.result_list = list(found.result_list)
        fingerprints = [group.fingerprint for group in found.result_list]
        figures, acts = group_figures(timezone.now(), fingerprints, WINDOWS), GroupActs(self, request)
        for group in found.result_list:
            group.figures, group.tasks_url = figures[group.fingerprint], acts.tasks_url(group)
            group.buttons = acts.in_row(group)
        return found

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        more = {"acts_form": FORM, "from_groups": request.GET.urlencode()}
        return super().changelist_view(request, {**more, **(extra_context or {})})

    @admin.action(description="Show the open tasks", permissions=["view"])
    def show_tasks(self, request: HttpRequest, queryset: QuerySet[FailureGroup]) -> HttpResponse | None:
        """Open the list of the open tasks of these groups, where an action can select all of them."""
        url = self.page_url(request, ExhaustedTask, "changelist")
        if url is None:
            raise PermissionDenied
        numbers = list(queryset.values_list("pk", flat=True)[: MOST_SHOWN + 1])
        if len(numbers) > MOST_SHOWN:
            messages.warning(request, f"Select at most {MOST_SHOWN} groups.")
            return None
        chosen = f"{url}?group={','.join(map(str, numbers))}"
        return HttpResponseRedirect(chosen if numbers else request.get_full_path())

    @admin.action(description="Mute: no alerts", permissions=["annotate"])
    def mute(self, request: HttpRequest, queryset: QuerySet[FailureGroup]) -> None:
        self._set_muted(request, queryset, muted=True)

    @admin.action(description="Unmute", permissions=["annotate"])
    def unmute(self, request: HttpRequest, queryset: QuerySet[FailureGroup]) -> None:
        self._set_muted(request, queryset, muted=False)

    def _set_muted(self, request: HttpRequest, queryset: QuerySet[FailureGroup], *, muted: bool) -> None:
        # By their ids, as the query of the list would count the open tasks of each group.
        chosen = FailureGroup.objects.filter(pk__in=queryset.order_by().values("pk")).exclude(muted=muted)
        groups = list(chosen.order_by("pk"))
        numbers = [group.pk for group in groups]
        what = "Muted" if muted else "Unmuted"
        if groups:
            FailureGroup.objects.filter(among(numbers, chosen.db)).update(muted=muted)
            log(request, what, *groups)
            self._note(request, what, numbers, muted=muted)
        messages.success(request, f"{grouped(len(groups))} {plural(len(groups), 'group', 'groups')} {what.lower()}.")

    def _note(self, request: HttpRequest, what: str, groups: list[int], **details: Any) -> None:
        """Add a change of groups to the audit log."""
        details = {"groups": groups, **details}
        note_done(Operation.Kind.MUTE, actor(request), reason=what, requested=len(groups), **details)

    def get_urls(self) -> list[Any]:
        views = {"note": self.note_view, "mute": self.mute_view}
        return [*(self.row_url(name, view, "annotate") for name, view in views.items()), *super().get_urls()]

    def row_page(self, request: HttpRequest, object_id: str) -> HttpResponse:
        group: Any = found(self.get_queryset(request), object_id)
        note = text.plain(group.note, MAX_NOTE)
        figures = group_figures(timezone.now(), [group.fingerprint], WINDOWS)[group.fingerprint]
        acts = GroupActs(self, request)
        context = self.page_context(
            request,
            text.plain(group, 120),
            group=group,
            original=group,
            exhausted=in_words(figures),
            tasks_url=acts.tasks_url(group),
            chart=chart(figures.hours),
            form=NoteForm(initial={"note": note}) if self.allows(request, "annotate") else None,
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
        group = found(FailureGroup.objects.all(), object_id)
        form = NoteForm(request.POST)
        if form.is_valid():
            note = form.cleaned_data["note"]
            FailureGroup.objects.filter(pk=group.pk).update(note=note)
            log(request, "Note changed", group)
            self._note(request, "Note changed", [group.pk], before=group.note, after=note)
            messages.success(request, "The note was saved.")
        else:
            messages.error(request, " ".join(map(str, form.errors["note"])))
        return HttpResponseRedirect(self.here("change", group.pk))

    def mute_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Mute a group or unmute it, and return to the page that this was started from."""
        group = found(FailureGroup.objects.all(), object_id)
        muted = request.POST.get("muted")
        if muted not in ("0", "1"):
            raise BadRequest("muted is missing or invalid: send 1 to mute the group, 0 to unmute it.")
        self._set_muted(request, FailureGroup.objects.filter(pk=group.pk), muted=muted == "1")
        query = request.POST.get("from_groups")
        return HttpResponseRedirect(
            self.here("change", group.pk) if query is None else with_query(self.here("changelist"), query)
        )
