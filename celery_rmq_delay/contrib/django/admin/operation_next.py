"""The buttons of an ended operation: process the rest of its tasks, or undo it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest

from ..models import FailureGroup, Operation, OperationItem, TaskRecord, TaskState
from ..queries import grouped
from .acts import DISCARD, GRADUALLY, REQUEUE, RESTORE, RUN_NOW, Button
from .base import ReadOnlyAdmin
from .link_filters import REST

Kind, Outcome = Operation.Kind, OperationItem.Outcome

#: The permission to start, cancel and continue an operation of each kind.
NEEDS = {
    Kind.RUN_NOW: "requeue",
    Kind.REQUEUE: "requeue",
    Kind.EDIT: "edit_payload",
    Kind.DISCARD: "discard",
    Kind.RESTORE: "discard",
    Kind.MUTE: "annotate",
}
#: The actions that continue an operation, with the labels for failed tasks, and for those that it has not tried, too.
_AGAIN = {
    Kind.REQUEUE: (REQUEUE, "Requeue the failed", "Requeue the rest"),
    Kind.RUN_NOW: (RUN_NOW, "Run the failed now", "Run the rest now"),
    Kind.DISCARD: (DISCARD, "Discard the failed", "Discard the rest"),
    Kind.RESTORE: (RESTORE, "Restore the failed", "Restore the rest"),
}


def may(pages: ReadOnlyAdmin, request: HttpRequest, kind: str) -> bool:
    """Return whether the user may start and cancel operations of a kind."""
    needed = NEEDS.get(Kind(kind))
    return needed is not None and bool(getattr(pages, f"has_{needed}_permission")(request))


def buttons(
    pages: ReadOnlyAdmin, request: HttpRequest, operation: Operation, outcomes: Mapping[str, int]
) -> Iterator[Button]:
    """Yield the buttons of an operation that has ended, for a user who may start operations of its kind."""
    if not operation.is_over or not may(pages, request, operation.kind):
        return
    if operation.kind == Kind.MUTE:
        yield from _undo_of_mute(pages, request, operation)
        return
    tasks = pages.page_url(request, TaskRecord, "changelist")
    if tasks is None:
        return
    rest = sum(outcomes.get(each, 0) for each in REST)
    if rest and operation.kind in _AGAIN:
        act, failed, all_of_them = _AGAIN[Kind(operation.kind)]
        label = failed if rest == outcomes.get(Outcome.FAILED) else all_of_them
        is_gradual = operation.kind == Kind.REQUEUE and (operation.canary or operation.rate)
        url = f"{tasks}?{urlencode({'operation': operation.pk, 'outcome': 'rest'})}"
        yield Button(url, "action", (GRADUALLY if is_gradual else act).name, f"{label} ({grouped(rest)})")
    if operation.kind == Kind.DISCARD and _has_discarded(operation):
        query = {"state": TaskState.DISCARDED.value, "operation": operation.pk, "outcome": "done"}
        yield Button(f"{tasks}?{urlencode(query)}", "action", RESTORE.name, "Undo this")


def _has_discarded(operation: Operation) -> bool:
    """Return whether tasks are still as the operation has left them."""
    done = operation.items.filter(outcome=Outcome.OK)
    return done.filter(record__operation=operation, record__state=TaskState.DISCARDED).exists()


def _undo_of_mute(pages: ReadOnlyAdmin, request: HttpRequest, operation: Operation) -> Iterator[Button]:
    groups: Any = operation.details.get("groups")
    muted = operation.details.get("muted")
    url = pages.page_url(request, FailureGroup, "changelist")
    if url is not None and isinstance(muted, bool) and isinstance(groups, list):
        left = FailureGroup.objects.filter(pk__in=groups, muted=muted).values_list("pk", flat=True)
        if rows := tuple(left):
            yield Button(f"{url}?open=any", "action", "unmute" if muted else "mute", "Undo this", rows=rows)
