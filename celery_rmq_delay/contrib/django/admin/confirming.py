"""The confirmation page of an action, and the operation that it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.admin import helpers
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import router
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

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
from .base import EXHAUSTED_STATES, ReadOnlyAdmin, is_number, with_query
from .confirm_forms import ConfirmForm, form_of
from .link_filters import followed

#: Rows of each table that the confirmation page shows.
SHOWN = 10
#: Tasks whose messages the page reads to count expired ones.
CHECKED = 1_000


def ask_or_run(pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any], act: Act) -> HttpResponse:
    """Freeze the selection as a draft and show its confirmation page; once that is confirmed, run the operation."""
    form_class = form_of(act)
    if "draft" not in request.POST:
        return _asked(pages, request, queryset, act, form_class())
    draft = _draft(pages, request, act)
    if draft is None:
        return _too_late(pages, request)
    if draft.state != Operation.State.DRAFT:
        return _again(pages, request, draft)
    form = form_class(request.POST)
    if not form.is_valid():
        return _page(pages, request, draft, act, form)
    return _confirmed(pages, request, draft, form.options())


def _asked(
    pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any], act: Act, form: ConfirmForm
) -> HttpResponse:
    selected = queryset if request.POST.get("select_across") == "1" else _chosen(pages, request)
    draft = operations.freeze(
        act.kind,
        selected.filter(state__in=act.states),
        actor=log_entries.actor(request),
        follows=followed(request),
        details={"filters": request.GET.dict(), "list": str(pages.opts.model_name)},
        draft=True,
    )
    return _page(pages, request, draft, act, form, others=selected.exclude(state__in=act.states).count())


def _draft(pages: ReadOnlyAdmin, request: HttpRequest, act: Act) -> Operation | None:
    """Return the operation of a confirmation, which may not be a draft any more; None if it was deleted.

    Raises `BadRequest` if no page of this list and action can name it, and `PermissionDenied` if it is another user's.
    """
    problem = "The draft of this confirmation is invalid. Start the action from the list again."
    key = request.POST["draft"]
    if not is_number(key):
        raise BadRequest(problem)
    draft: Operation | None = Operation.with_drafts.filter(pk=key).first()
    if draft is None:
        return None
    if draft.user_id != request.user.pk:
        raise PermissionDenied
    if (draft.kind, draft.details.get("list")) != (act.kind, pages.opts.model_name):
        raise BadRequest(problem)
    return draft


def _chosen(pages: ReadOnlyAdmin, request: HttpRequest) -> QuerySet[Any]:
    """Return the selected rows by id, regardless of the list's filters.

    The page of a task acts on a task that its list may not show, and a row that another user has changed in the
    meantime must be reported as skipped. Raises `BadRequest`.
    """
    try:
        ids = [int(each) for each in request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)]
    except ValueError as error:
        problem = "The ids of the selected tasks are not numbers. Start the action from the list again."
        raise BadRequest(problem) from error
    rows = TaskRecord.objects.filter(among(ids, router.db_for_read(TaskRecord)))
    return rows.exclude(state__in=_out_of_sight(pages, request)).order_by(*pages.ordering or ("pk",))


def _out_of_sight(pages: ReadOnlyAdmin, request: HttpRequest) -> list[str]:
    """Return the states of tasks that no list shows to this user: each list has its own permission."""
    if pages.page_url(request, TaskRecord, "changelist"):
        return []
    lists = ((ExhaustedTask, EXHAUSTED_STATES), (ParkedTask, (TaskState.PARKED, TaskState.RUNNING)))
    return [state for model, states in lists if not pages.page_url(request, model, "changelist") for state in states]


def _confirmed(
    pages: ReadOnlyAdmin, request: HttpRequest, operation: Operation, options: dict[str, Any]
) -> HttpResponse:
    def step() -> bool:
        if not operations.confirm(operation, **options):
            return False
        log_entries.log_operation(request, operation)
        return True

    if not repeated(step):
        found = Operation.objects.filter(pk=operation.pk).first()
        return _too_late(pages, request) if found is None else _again(pages, request, found)
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


def _too_late(pages: ReadOnlyAdmin, request: HttpRequest) -> HttpResponse:
    messages.warning(request, "Nothing was changed: the confirmation page was a day old. Start the action again.")
    return HttpResponseRedirect(_back(pages, request))


def _again(pages: ReadOnlyAdmin, request: HttpRequest, operation: Operation) -> HttpResponse:
    """Show the operation of a page that was confirmed before."""
    so_far = text.plain(operation.message or operations.report(operation), 1_000)
    messages.warning(request, f"This was confirmed before, as operation {operation.pk}: {so_far}")
    url = pages.page_url(request, Operation, "change", operation.pk)
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
    pages: ReadOnlyAdmin, request: HttpRequest, draft: Operation, act: Act, form: ConfirmForm, others: int = 0
) -> HttpResponse:
    """Return the page of a draft; ``others`` were selected, too, in states that the action does not apply to."""
    tasks = TaskRecord.objects.filter(operation_items__operation=draft)
    counts = _breakdown(tasks)
    from_record = request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)[:1] if "from_record" in request.POST else []
    context = pages.page_context(
        request,
        act.label,
        act=act,
        form=form,
        draft=draft,
        affected=draft.requested,
        others=others,
        tables=_tables(counts),
        from_record=from_record,
        from_groups=request.POST.get("from_groups"),
        checkbox=helpers.ACTION_CHECKBOX_NAME,
        is_background=act.gradual or draft.requested > conf().inline_limit,
        back=_back(pages, request),
        **(_of_messages(tasks, counts) if act.kind == Kind.REQUEUE else {}),
        in_classic=_in_classic(counts) if act.kind == Kind.DISCARD else 0,
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
    """The tasks of one combination of values: how many, and how many of them have no message."""

    values: dict[str, str]
    count: int
    without_message: int


def _breakdown(tasks: QuerySet[Any]) -> list[Counted]:
    """Return the number of tasks of each combination of values, in one query."""
    rows = tasks.values(*_BREAKDOWN).annotate(count=Count("pk"), without=Count("pk", filter=Q(call_digest="")))
    return [Counted({name: row[name] for name in _BREAKDOWN}, row["count"], row["without"]) for row in rows]


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
