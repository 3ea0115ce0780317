"""Admin actions: the confirmation page, and the operation that it starts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.core.exceptions import BadRequest
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ....exceptions import RmqDelayError
from ..conf import conf
from ..models import ExhaustedTask, FailureGroup, Operation, ParkedTask, TaskRecord, TaskState
from ..queries import grouped
from ..services import counts as live
from ..services.actors import note_done
from ..services.export import CONTENT_TYPES, ExportFormat, export_rows
from ..services.operations import requests as operations
from ..services.operations.transactions import repeated
from . import log_entries, text
from .acts import DISCARD, GRADUALLY, REQUEUE, RESTORE, RUN_NOW, Act, Kind
from .base import EXHAUSTED_STATES, ReadOnlyAdmin, with_query
from .link_filters import followed

#: Rows of each table that the confirmation page shows.
SHOWN = 10
#: Defaults of a gradual requeue.
CANARIES, RATE = 5, 60


def reason_field() -> forms.CharField:
    """Return the form field for the reason."""
    return forms.CharField(
        label=gettext_lazy("Why"),
        required=False,
        max_length=1_000,
        widget=forms.Textarea(attrs={"rows": 2, "cols": 60}),
        help_text=gettext_lazy("Stored with the operation."),
    )


class ConfirmForm(forms.Form):
    """The form of the confirmation page; ``as_of`` and ``expected`` are the time and the count that it showed."""

    reason = reason_field()
    as_of = forms.CharField(widget=forms.HiddenInput)
    expected = forms.IntegerField(widget=forms.HiddenInput, min_value=0)

    def clean_as_of(self) -> datetime:
        """Return the time when the page was rendered."""
        try:
            found = parse_datetime(self.cleaned_data["as_of"])
        except ValueError:
            found = None
        if found is None or timezone.is_aware(found) != timezone.is_aware(timezone.now()):
            raise forms.ValidationError("not a valid time")
        return found


class GradualForm(ConfirmForm):
    """The form of a gradual requeue."""

    canary = forms.IntegerField(
        label=gettext_lazy("Canaries"),
        min_value=0,
        max_value=1_000,
        initial=CANARIES,
        help_text=gettext_lazy("Number of tasks to requeue first."),
    )
    rate = forms.IntegerField(
        label=gettext_lazy("Per minute"),
        min_value=1,
        max_value=100_000,
        initial=RATE,
        help_text=gettext_lazy("Number of the other tasks to requeue per minute."),
    )


def ask_or_run(pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any], act: Act) -> HttpResponse:
    """Show the confirmation page; once it is confirmed, run the action on the tasks that it showed."""
    form_class = GradualForm if act.gradual else ConfirmForm
    if not _is_across(request):
        queryset = _chosen(pages, request)
    if "confirm" not in request.POST:
        return _page(pages, request, queryset, act, form_class)
    form = form_class(request.POST)
    if form.has_error("as_of") or form.has_error("expected"):
        raise BadRequest("as_of or expected is missing or invalid. Start the action from the list again.")
    if not form.is_valid():
        return _page(pages, request, queryset, act, form_class, form)
    frozen = _frozen(request, queryset, act, form.cleaned_data["as_of"])
    if frozen.count() > form.cleaned_data["expected"]:
        messages.warning(request, _("There are more tasks than before. Check the numbers again."))
        return _page(pages, request, queryset, act, form_class)
    return _run(pages, request, frozen, act, form.cleaned_data)


def _chosen(pages: ReadOnlyAdmin, request: HttpRequest) -> QuerySet[Any]:
    """Return the selected rows by id, regardless of the list's filters.

    The page of a task acts on a task that its list may not show, and a row that another user has changed in the
    meantime must be reported as skipped.
    """
    chosen = request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)
    rows = TaskRecord.objects.filter(pk__in=chosen).exclude(state__in=_out_of_sight(pages, request))
    return rows.order_by(*pages.ordering or ("pk",))


def _out_of_sight(pages: ReadOnlyAdmin, request: HttpRequest) -> list[str]:
    """Return the states of tasks that no list shows to this user: each list has its own permission."""
    if pages.page_url(request, TaskRecord, "changelist"):
        return []
    lists = ((ExhaustedTask, EXHAUSTED_STATES), (ParkedTask, (TaskState.PARKED, TaskState.RUNNING)))
    return [state for model, states in lists if not pages.page_url(request, model, "changelist") for state in states]


def _frozen(request: HttpRequest, queryset: QuerySet[Any], act: Act, as_of: datetime) -> QuerySet[Any]:
    """Return the rows that the page showed, without those that were added to the list since."""
    return queryset.filter(state__in=act.states, changed_at__lte=as_of) if _is_across(request) else queryset


def _is_across(request: HttpRequest) -> bool:
    return request.POST.get("select_across") == "1"


def _run(
    pages: ReadOnlyAdmin, request: HttpRequest, frozen: QuerySet[Any], act: Act, answer: dict[str, Any]
) -> HttpResponse:
    details = {"filters": request.GET.dict(), "list": str(pages.opts.model_name)}
    gradually = {"canary": answer["canary"], "rate": answer["rate"]} if act.gradual else {}

    def step() -> Operation:
        made = operations.freeze(
            act.kind,
            frozen,
            actor=log_entries.actor(request),
            reason=answer["reason"].strip(),
            details=details,
            follows=followed(request),
            **gradually,
        )
        log_entries.log_operation(request, made)
        return made

    operation = repeated(step)
    url = pages.page_url(request, Operation, "change", operation.pk)
    if operations.is_inline(operation):
        try:
            operation = operations.run(operation)
        except RmqDelayError as error:
            messages.error(request, text.plain(error, 500))
        else:
            show_result(request, operation)
        live.forget()
        return HttpResponseRedirect(_back(pages, request))
    messages.info(
        request,
        ngettext(
            "Operation %(number)s: “manage.py rmq_delay_operate” will process %(count)s task.",
            "Operation %(number)s: “manage.py rmq_delay_operate” will process %(count)s tasks.",
            operation.requested,
        )
        % {"number": operation.pk, "count": grouped(operation.requested)},
    )
    return HttpResponseRedirect(url or _back(pages, request))


def show_result(request: HttpRequest, operation: Operation) -> None:
    """Show the user the exact result of an operation that has run."""
    bad = operation.failed or operation.unknown or operation.state == Operation.State.FAILED
    level = messages.ERROR if bad else messages.WARNING if operation.skipped else messages.SUCCESS
    messages.add_message(request, level, text.plain(operation.message or operations.report(operation), 1_000))


def _back(pages: ReadOnlyAdmin, request: HttpRequest) -> str:
    """Return the URL that the action was started from: a list with its filters, or the page of a task.

    A discarded parked task moves to the pages of exhausted tasks, where it can be restored and requeued.
    """
    groups = pages.page_url(request, FailureGroup, "changelist")
    if groups and "from_groups" in request.POST:
        return with_query(groups, request.POST["from_groups"])
    selected = request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)
    if "from_record" not in request.POST or len(selected) != 1:
        return request.get_full_path()
    record = TaskRecord.objects.filter(pk=selected[0]).first()
    if record is not None and record.state in EXHAUSTED_STATES and pages.model is ParkedTask:
        return pages.record_url(request, record) or pages.here("change", selected[0])
    return pages.here("change", selected[0])


def _page(
    pages: ReadOnlyAdmin,
    request: HttpRequest,
    queryset: QuerySet[Any],
    act: Act,
    form_class: type[ConfirmForm],
    form: ConfirmForm | None = None,
) -> HttpResponse:
    now = timezone.now()
    across = _is_across(request)
    counts = _breakdown(queryset.filter(changed_at__lte=now) if across else queryset)
    selected = [] if across else list(queryset.filter(state__in=act.states).values_list("pk", flat=True))
    total = sum(count for _values, count in counts)
    affected = sum(count for values, count in counts if values["state"] in act.states)
    shown = form_class(
        {**dict(request.POST.items()), "as_of": now.isoformat(), "expected": affected} if form else None,
        initial={"as_of": now.isoformat(), "expected": affected},
    )
    context = pages.page_context(
        request,
        str(act.label),
        act=act,
        form=shown,
        affected=affected,
        affected_text=grouped(affected),
        others=total - affected,
        tables=_tables(counts),
        selected=selected,
        across=across,
        from_record="from_record" in request.POST,
        from_groups=request.POST.get("from_groups"),
        checkbox=helpers.ACTION_CHECKBOX_NAME,
        is_background=act.gradual or affected > conf().inline_limit,
        back=_back(pages, request),
    )
    return TemplateResponse(request, "admin/rmq_delay/confirm.html", context)


_BREAKDOWN = {
    "name": gettext_lazy("Task"),
    "queue": gettext_lazy("Queue"),
    "exception_type": gettext_lazy("Error"),
    "state": gettext_lazy("State"),
}


def _breakdown(queryset: QuerySet[Any]) -> list[tuple[dict[str, str], int]]:
    """Return the number of tasks of each combination of values, in one query."""
    rows = queryset.order_by().values(*_BREAKDOWN).annotate(count=Count("pk"))
    return [({name: row[name] for name in _BREAKDOWN}, row["count"]) for row in rows]


def _tables(counts: list[tuple[dict[str, str], int]]) -> list[dict[str, Any]]:
    tables = []
    for name, label in _BREAKDOWN.items():
        sums: dict[str, int] = {}
        for values, count in counts:
            sums[values[name]] = sums.get(values[name], 0) + count
        most = sorted(sums.items(), key=lambda each: (-each[1], each[0]))
        rows = [(text.state_badge(value) if name == "state" else text.hostile(value), count) for value, count in most]
        rest = sum(count for _value, count in most[SHOWN:])
        tables.append({"label": label, "rows": rows[:SHOWN], "rest": rest, "more": len(most) - SHOWN})
    return tables


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


@admin.action(description=gettext_lazy("Export as CSV"), permissions=["view"])
def export_csv(pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> StreamingHttpResponse:
    """Return the tasks as a CSV file."""
    return _export(pages, request, queryset, "csv")


@admin.action(description=gettext_lazy("Export as JSON lines"), permissions=["view"])
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
