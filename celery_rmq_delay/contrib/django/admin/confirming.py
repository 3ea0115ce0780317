"""The confirmation page of an action, and the operation that it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.contrib.admin import helpers
from django.core.exceptions import BadRequest
from django.db import router
from django.db.models import Count, Max, Q, QuerySet, Sum
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils import timezone

from ....exceptions import RmqDelayError
from ....operations.approval import has_own_call
from ....signals import before_requeue
from ..broker import delay
from ..conf import conf
from ..models import ExhaustedTask, FailureGroup, Operation, ParkedTask, TaskRecord, TaskState
from ..queries import among, grouped, plural
from ..services import counts as live
from ..services.operations import requests as operations
from ..services.operations.requeue import expired_among
from ..transactions import repeated
from . import log_entries, text
from .acts import Act, Kind
from .base import EXHAUSTED_STATES, ReadOnlyAdmin, with_query
from .confirm_forms import ConfirmForm, form_of
from .link_filters import followed

#: Rows of each table that the confirmation page shows.
SHOWN = 10
#: Tasks whose messages the page reads to count expired ones.
CHECKED = 1_000
#: The most tasks of a whole list that the page names one by one: their ids are about 1 MB.
EXACT = 100_000


def ask_or_run(pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any], act: Act) -> HttpResponse:
    """Show the confirmation page; once it is confirmed, run the action on the tasks that it showed."""
    form_class = form_of(act)
    if not _is_across(request):
        queryset = _chosen(pages, request)
    if not {"confirm", "first"} & {*request.POST}:
        return _page(pages, request, queryset, act, form_class)
    form = form_class(request.POST)
    if form.is_forged:
        raise BadRequest("A hidden field is missing or invalid. Start the action from the list again.")
    if not form.is_valid():
        return _page(pages, request, queryset, act, form_class, form)
    answer = form.cleaned_data
    frozen = _frozen(request, queryset, act, answer)
    if "first" in request.POST and answer["before"] is not None:
        frozen = frozen.order_by("changed_at", "pk")[: answer["before"]]
    elif _is_across(request) and _sums(frozen) != (answer["expected"], answer["ids_sum"]):
        messages.warning(request, "The tasks of this list have changed. Check the numbers again.")
        return _page(pages, request, queryset, act, form_class, form, before=answer["expected"])
    return _run(pages, request, frozen, act, form.options())


def _chosen(pages: ReadOnlyAdmin, request: HttpRequest) -> QuerySet[Any]:
    """Return the selected rows by id, regardless of the list's filters.

    The page of a task acts on a task that its list may not show, and a row that another user has changed in the
    meantime must be reported as skipped. Raises `BadRequest`.
    """
    ids = request.POST.get("ids")
    chosen = request.POST.getlist(helpers.ACTION_CHECKBOX_NAME) if ids is None else ids.split(",")
    try:
        return _rows(pages, request, [int(each) for each in chosen])
    except ValueError as error:
        problem = "The ids of the selected tasks are not numbers. Start the action from the list again."
        raise BadRequest(problem) from error


def _rows(pages: ReadOnlyAdmin, request: HttpRequest, ids: list[int]) -> QuerySet[Any]:
    rows = TaskRecord.objects.filter(among(ids, router.db_for_read(TaskRecord)))
    return rows.exclude(state__in=_out_of_sight(pages, request)).order_by(*pages.ordering or ("pk",))


def _out_of_sight(pages: ReadOnlyAdmin, request: HttpRequest) -> list[str]:
    """Return the states of tasks that no list shows to this user: each list has its own permission."""
    if pages.page_url(request, TaskRecord, "changelist"):
        return []
    lists = ((ExhaustedTask, EXHAUSTED_STATES), (ParkedTask, (TaskState.PARKED, TaskState.RUNNING)))
    return [state for model, states in lists if not pages.page_url(request, model, "changelist") for state in states]


def _frozen(request: HttpRequest, queryset: QuerySet[Any], act: Act, shown: Mapping[str, Any]) -> QuerySet[Any]:
    """Return the rows that the page showed, without those that were added to the list since.

    A row that was changed by a transaction of that time, and committed since, cannot be distinguished from them: the
    sum of the ids shows it.
    """
    if not _is_across(request):
        return queryset
    return queryset.filter(state__in=act.states, changed_at__lte=shown["as_of"], pk__lte=shown["newest"])


def _sums(rows: QuerySet[Any]) -> tuple[int, int]:
    """Return the number of rows and the sum of their ids: other rows have another sum, except by chance."""
    found = rows.order_by().aggregate(count=Count("pk"), ids_sum=Sum("pk"))
    return found["count"], int(found["ids_sum"] or 0)


def _is_across(request: HttpRequest) -> bool:
    return request.POST.get("select_across") == "1"


def _run(
    pages: ReadOnlyAdmin, request: HttpRequest, frozen: QuerySet[Any], act: Act, options: dict[str, Any]
) -> HttpResponse:
    details = {"filters": request.GET.dict(), "list": str(pages.opts.model_name), **options.pop("details")}

    def step() -> Operation:
        made = operations.freeze(
            act.kind, frozen, actor=log_entries.actor(request), follows=followed(request), details=details, **options
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
        f"Operation {operation.pk}: “manage.py rmq_delay_operate” will process {grouped(operation.requested)} "
        f"{plural(operation.requested, 'task', 'tasks')}.",
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
    before: int | None = None,
) -> HttpResponse:
    """Return the page; ``before`` is the number of tasks that an earlier page showed, where it was less."""
    across, ids, others = _is_across(request), request.POST.get("ids"), 0
    if across:
        found = list(queryset.filter(state__in=act.states).values_list("pk", flat=True)[: EXACT + 1])
        if len(found) <= EXACT:  # exactly these tasks, whatever happens to the list
            others = queryset.exclude(state__in=act.states).count()
            across, ids, queryset = False, ",".join(map(str, found)), _rows(pages, request, found)
    counts = _breakdown(queryset)
    meant = queryset.filter(state__in=act.states)
    concerned = [each for each in counts if each.values["state"] in act.states]
    affected = sum(each.count for each in concerned)
    others += sum(each.count for each in counts) - affected
    hidden = {
        "as_of": max((each.changed_at for each in concerned), default=timezone.now()).isoformat(),
        "newest": max((each.newest for each in concerned), default=0),
        "expected": affected,
        "ids_sum": sum(each.ids_sum for each in concerned),
        "before": "" if before is None else before,
    }
    shown = form_class({**dict(request.POST.items()), **hidden} if form else None, initial=hidden)
    context = pages.page_context(
        request,
        act.label,
        act=act,
        form=shown,
        affected=affected,
        before=before,
        others=others,
        tables=_tables(counts),
        selected=[] if across or ids is not None else list(meant.values_list("pk", flat=True)),
        ids=ids,
        across=across,
        from_record="from_record" in request.POST,
        from_groups=request.POST.get("from_groups"),
        checkbox=helpers.ACTION_CHECKBOX_NAME,
        is_background=act.gradual or affected > conf().inline_limit,
        back=_back(pages, request),
        **(_of_messages(meant, concerned) if act.kind == Kind.REQUEUE else {}),
        in_classic=_in_classic(concerned) if act.kind == Kind.DISCARD else 0,
    )
    return TemplateResponse(request, "admin/rmq_delay/confirm.html", context)


def _of_messages(meant: QuerySet[Any], concerned: list[Counted]) -> dict[str, Any]:
    """Return how many of the tasks have no message, and how many of the first ones have expired."""
    expired, _checked = expired_among(meant, CHECKED)
    without = sum(each.without_message for each in concerned)
    affected = sum(each.count for each in concerned)
    return {
        "without_message": without,
        "nothing_kept": without == affected,
        "expired": expired,
        "expired_of": CHECKED if affected > CHECKED else 0,
        "with_own_call": ", ".join(_with_own_call({each.values["name"] for each in concerned})),
    }


def _with_own_call(names: set[str]) -> list[str]:
    """Return which tasks do more in ``apply_async`` than a requeue, where no receiver of `before_requeue` does it."""
    if before_requeue.receivers:
        return []
    try:
        known = delay().app.tasks
    except RmqDelayError:
        return []
    return sorted(name for name in names if has_own_call(known.get(name)))


def _in_classic(concerned: list[Counted]) -> int:
    """Return how many of the tasks are parked in classic queues, which a crash of the broker can bring back."""
    parked = [each for each in concerned if each.values["state"] == TaskState.PARKED]
    try:
        return sum(each.count for each in parked if delay().queue_type(each.values["queue"]) == "classic")
    except RmqDelayError:  # without an app the types are not known
        return sum(each.count for each in parked)


_BREAKDOWN = {
    "name": "Task",
    "queue": "Queue",
    "exception_type": "Error",
    "state": "State",
}


@dataclass(frozen=True)
class Counted:
    """The tasks of one combination of values: how many, their latest change, the highest id and the sum of the ids."""

    values: dict[str, str]
    count: int
    changed_at: datetime
    newest: int
    ids_sum: int
    without_message: int


def _breakdown(queryset: QuerySet[Any]) -> list[Counted]:
    """Return the number of tasks of each combination of values, in one query."""
    rows = (
        queryset.order_by()
        .values(*_BREAKDOWN)
        .annotate(
            count=Count("pk"),
            latest=Max("changed_at"),
            newest=Max("pk"),
            ids_sum=Sum("pk"),
            without=Count("pk", filter=Q(call_digest="")),
        )
    )
    return [
        Counted(
            {name: row[name] for name in _BREAKDOWN},
            row["count"],
            row["latest"],
            row["newest"],
            int(row["ids_sum"]),
            row["without"],
        )
        for row in rows
    ]


def _tables(counts: list[Counted]) -> list[dict[str, Any]]:
    tables = []
    for name, label in _BREAKDOWN.items():
        sums: dict[str, int] = {}
        for each in counts:
            sums[each.values[name]] = sums.get(each.values[name], 0) + each.count
        most = sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))
        rows = [(text.state_badge(value) if name == "state" else text.hostile(value), count) for value, count in most]
        rest = sum(count for _value, count in most[SHOWN:])
        tables.append({"label": label, "rows": rows[:SHOWN], "rest": rest, "more": len(most) - SHOWN})
    return tables
