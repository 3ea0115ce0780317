"""The buttons of an ended operation: process the rest of its tasks, or undo it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest

from ..models import FailureGroup, Operation, OperationItem, TaskRecord, TaskState
from ..queries import grouped
from ..services.operations.action import of_kind
from .base import ReadOnlyAdmin
from .buttons import Button
from .link_filters import REST

Kind, Outcome = Operation.Kind, OperationItem.Outcome


def may(pages: ReadOnlyAdmin, request: HttpRequest, kind: str) -> bool:
    """Return whether the user may start and cancel operations of a kind."""
    if kind == Kind.MUTE:
        return pages.has_annotate_permission(request)
    action = of_kind(kind)
    return action is not None and bool(getattr(pages, f"has_{action.permission}_permission")(request))


def buttons(
    pages: ReadOnlyAdmin, request: HttpRequest, operation: Operation, outcomes: Mapping[str, int]
) -> Iterator[Button]:
    """Yield the buttons of an operation that has ended, for a user who may start operations of its kind."""
    if not operation.is_over or not may(pages, request, operation.kind):
        return
    if operation.kind == Kind.MUTE:
        yield from _undo_of_mute(pages, request, operation)
        return
    action, tasks = of_kind(operation.kind), pages.page_url(request, TaskRecord, "changelist")
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


def _has_left(operation: Operation, state: TaskState) -> bool:
    """Return whether tasks are still in the state in which the operation has left them."""
    done = operation.items.filter(outcome=Outcome.OK)
    return done.filter(record__operation=operation, record__state=state).exists()


def _undo_of_mute(pages: ReadOnlyAdmin, request: HttpRequest, operation: Operation) -> Iterator[Button]:
    groups: Any = operation.details.get("groups")
    muted = operation.details.get("muted")
    url = pages.page_url(request, FailureGroup, "changelist")
    if url is not None and isinstance(muted, bool) and isinstance(groups, list):
        left = FailureGroup.objects.filter(pk__in=groups, muted=muted).values_list("pk", flat=True)
        if rows := tuple(left):
            yield Button(f"{url}?open=any", "action", "unmute" if muted else "mute", "Undo this", rows=rows)
