"""The actions of the lists: exports, and those with a confirmation page, and the operation that this starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import router
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.template.response import TemplateResponse

from ....exceptions import RmqDelayError
from ..conf import conf
from ..models import ExhaustedTask, FailureGroup, Operation, ParkedTask, TaskRecord
from ..queries import among, grouped, plural
from ..services import counts as live
from ..services.actors import note_done
from ..services.export import CONTENT_TYPES, ExportFormat, export_rows
from ..services.operations import requests as operations
from ..services.operations.action import Action, ConfirmForm, Counted
from ..services.operations.actions import ACTIONS
from ..transactions import repeated
from . import text
from .base import EXHAUSTED_STATES, PARKED_STATES, ReadOnlyAdmin, actor, is_number, log_operation, with_query
from .filters import followed

#: Rows of each table that the confirmation page shows.
SHOWN = 10


def on(states: Iterable[str]) -> tuple[Callable[..., Any], ...]:
    """Return the actions of a list of tasks in these states: those that apply to one of them, and the exports."""
    asking = [_asking(each) for each in ACTIONS if {*each.states} & {*states}]
    return (*asking, _exporting("csv", "CSV"), _exporting("jsonl", "JSON lines"))


def _asking(action: Action) -> Callable[..., Any]:
    @admin.action(description=action.label, permissions=[action.permission])
    def ask(pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
        return _ask_or_run(pages, request, queryset, action)

    ask.__name__ = action.name
    return ask


def _exporting(form: ExportFormat, label: str) -> Callable[..., Any]:
    @admin.action(description=f"Export as {label}", permissions=["view"])
    def export(pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> StreamingHttpResponse:
        redacted = not pages.allows(request, "view_payload")
        name = str(pages.opts.model_name)
        details: dict[str, Any] = {"format": form, "redacted": redacted, "filters": request.GET.dict(), "list": name}
        note_done(Operation.Kind.EXPORT, actor(request), requested=queryset.count(), **details)
        headers = {
            "Content-Disposition": f'attachment; filename="{name}.{form}"',
            "X-Content-Type-Options": "nosniff",
        }
        rows = export_rows(queryset, format=form, redacted=redacted)
        return StreamingHttpResponse(rows, content_type=CONTENT_TYPES[form], headers=headers)

    export.__name__ = f"export_{form}"
    return export


def _ask_or_run(pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any], action: Action) -> HttpResponse:
    """Freeze the selection as a draft and show its confirmation page; once that is confirmed, run the operation."""
    if "draft" not in request.POST:
        return _asked(pages, request, queryset, action)
    draft = _draft(pages, request, action)
    if draft is None:
        return _too_late(pages, request)
    if draft.state != Operation.State.DRAFT:
        return _again(pages, request, draft)
    form = action.form(request.POST)
    if not form.is_valid():
        return _page(pages, request, draft, action, form)
    return _confirmed(pages, request, draft, form.options())


def _asked(pages: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet[Any], action: Action) -> HttpResponse:
    selected = queryset if request.POST.get("select_across") == "1" else _chosen(pages, request)
    draft = operations.freeze(
        action.kind,
        selected.filter(state__in=action.states),
        actor=actor(request),
        follows=followed(request),
        details={"filters": request.GET.dict(), "list": str(pages.opts.model_name)},
        draft=True,
    )
    others = selected.exclude(state__in=action.states).count()
    return _page(pages, request, draft, action, action.form(), others)


def _draft(pages: ReadOnlyAdmin, request: HttpRequest, action: Action) -> Operation | None:
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
    if (draft.kind, draft.details.get("list")) != (action.kind, pages.opts.model_name):
        raise BadRequest(problem)
    return draft


def _chosen(pages: ReadOnlyAdmin, request: HttpRequest) -> QuerySet[Any]:
    """Return the selected rows by id, regardless of the list's filters.

    The page of a task acts on a task that its list may not show, and a row that another user has changed in the
    meantime must be reported as skipped.
    """
    ids = [int(each) for each in request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)]
    rows = TaskRecord.objects.filter(among(ids, router.db_for_read(TaskRecord)))
    return rows.exclude(state__in=_out_of_sight(pages, request)).order_by(*pages.ordering or ("pk",))


def _out_of_sight(pages: ReadOnlyAdmin, request: HttpRequest) -> list[str]:
    """Return the states of tasks that no list shows to this user: each list has its own permission."""
    if pages.page_url(request, TaskRecord, "changelist"):
        return []
    lists = ((ExhaustedTask, EXHAUSTED_STATES), (ParkedTask, PARKED_STATES))
    return [state for model, states in lists if not pages.page_url(request, model, "changelist") for state in states]


def _confirmed(
    pages: ReadOnlyAdmin, request: HttpRequest, operation: Operation, options: dict[str, Any]
) -> HttpResponse:
    def step() -> bool:
        if not operations.confirm(operation, **options):
            return False
        log_operation(request, operation)
        return True

    if not repeated(step):
        found = Operation.objects.filter(pk=operation.pk).first()
        return _too_late(pages, request) if found is None else _again(pages, request, found)
    if not operations.is_inline(operation):
        number = operation.requested
        tasks = f"{grouped(number)} {plural(number, 'task', 'tasks')}"
        messages.info(request, f"Operation {operation.pk}: “manage.py rmq_delay_operate” will process {tasks}.")
        return _to_page(pages, request, operation)
    try:
        operation = operations.run(operation)
    except RmqDelayError as error:
        messages.error(request, text.plain(error, 500))
    else:
        show_result(request, operation)
    live.forget()
    return HttpResponseRedirect(_back(pages, request))


def _too_late(pages: ReadOnlyAdmin, request: HttpRequest) -> HttpResponse:
    messages.warning(request, "Nothing was changed: the confirmation page was a day old. Start the action again.")
    return HttpResponseRedirect(_back(pages, request))


def _again(pages: ReadOnlyAdmin, request: HttpRequest, operation: Operation) -> HttpResponse:
    """Show the operation of a page that was confirmed before."""
    messages.warning(request, f"This was confirmed before, as operation {operation.pk}: {_so_far(operation)}")
    return _to_page(pages, request, operation)


def _to_page(pages: ReadOnlyAdmin, request: HttpRequest, operation: Operation) -> HttpResponse:
    url = pages.page_url(request, Operation, "change", operation.pk)
    return HttpResponseRedirect(url or _back(pages, request))


def show_result(request: HttpRequest, operation: Operation) -> None:
    """Show the user the exact result of an operation that has run."""
    bad = operation.failed or operation.unknown or operation.state == Operation.State.FAILED
    level = messages.ERROR if bad else messages.WARNING if operation.skipped else messages.SUCCESS
    messages.add_message(request, level, _so_far(operation))


def _so_far(operation: Operation) -> str:
    return text.plain(operation.message or operations.report(operation), 1_000)


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
    pages: ReadOnlyAdmin, request: HttpRequest, draft: Operation, action: Action, form: ConfirmForm, others: int = 0
) -> HttpResponse:
    """Return the page of a draft; ``others`` were selected, too, in states that the action does not apply to."""
    tasks = TaskRecord.objects.filter(operation_items__operation=draft)
    counts = _breakdown(tasks)
    from_record = request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)[:1] if "from_record" in request.POST else []
    context = pages.page_context(
        request,
        action.label,
        act=action,
        form=form,
        draft=draft,
        affected=draft.requested,
        others=others,
        tables=_tables(counts),
        from_record=from_record,
        from_groups=request.POST.get("from_groups"),
        checkbox=helpers.ACTION_CHECKBOX_NAME,
        is_background=action.in_background or draft.requested > conf().inline_limit,
        back=_back(pages, request),
        notes=action.notes(tasks, counts),
        obstacle=action.obstacle(counts),
    )
    return TemplateResponse(request, "admin/rmq_delay/confirm.html", context)


_BREAKDOWN = {"name": "Task", "queue": "Queue", "exception_type": "Error", "state": "State"}


def _breakdown(tasks: QuerySet[Any]) -> list[Counted]:
    """Return the number of tasks of each combination of values, in one query."""
    rows = tasks.values(*_BREAKDOWN).annotate(count=Count("pk"), without=Count("pk", filter=Q(call_digest="")))
    return [Counted({name: row[name] for name in _BREAKDOWN}, row["count"], row["without"]) for row in rows]


def _tables(counts: list[Counted]) -> list[dict[str, Any]]:
    tables = []
    for name, label in _BREAKDOWN.items():
        sums = Counter[str]()
        for each in counts:
            sums[each.values[name]] += each.count
        most = sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))
        rows = [(text.state_badge(value) if name == "state" else text.hostile(value), count) for value, count in most]
        rest = sum(count for _value, count in most[SHOWN:])
        tables.append({"label": label, "rows": rows[:SHOWN], "rest": rest, "more": len(most) - SHOWN})
    return tables
