"""The details of an operation as text, what it waits for, and how long it takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

from django.apps import apps
from django.db.models import Q

from ..models import Operation, TaskState
from ..queries import grouped, plural
from ..services.operations import background, runner
from ..services.operations.background import count_running
from ..services.operations.lease import GOING, STALE_AFTER, may_start
from ..services.operations.reporting import time_left
from ..services.operations.requests import is_inline
from . import text
from .filters import in_words_of

State = Operation.State

_NO_PROCESS = "No operator process runs: start “manage.py rmq_delay_operate”."
#: The titles of the lists' query parameters, where they have another name.
_TITLES = {"q": "search", "requeued": "requeued before", "group": "failure group"}


def in_words(operation: Operation) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each detail that has one; not escaped, not shortened."""
    found = operation.details if isinstance(operation.details, dict) else {"": operation.details}
    for key, value in found.items():
        if value in ({}, [], "", None):
            continue
        if key == "filters" and isinstance(value, dict):
            yield (
                "Filters",
                "\n".join(f"{_TITLES.get(name, name)}: {_filtered(name, wanted)}" for name, wanted in value.items()),
            )
        elif key == "list" and isinstance(value, str):
            yield "List", _list_name(value)
        else:
            yield str(key).replace("_", " ").capitalize(), _value(value)


def _filtered(name: str, wanted: object) -> str:
    if name == "state" and isinstance(wanted, str) and wanted in TaskState.values:
        return str(TaskState(wanted).label)
    if name == "outcome":
        return in_words_of(str(wanted))
    return _value(wanted)


def _list_name(model_name: str) -> str:
    try:
        return str(apps.get_model(Operation._meta.app_label, model_name)._meta.verbose_name_plural)
    except LookupError:
        return model_name


def _value(value: object) -> str:
    """Return a JSON value as text: a list of plain values with commas, other containers indented."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and not any(isinstance(each, (dict, list)) for each in value):
        return ", ".join(map(_value, value))
    if isinstance(value, (dict, list)):
        return json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return str(value)


def waits_for(operation: Operation, now: datetime) -> str:
    """Return what an operation waits for; empty if it does not wait."""
    if operation.state == State.PENDING:
        return _to_begin(operation, now)
    if operation.state in GOING and operation.heartbeat_at and operation.heartbeat_at < now - STALE_AFTER:
        silent = text.duration(round((now - operation.heartbeat_at).total_seconds() * 1000))
        continued = "Another process continues it." if count_running(now) else _NO_PROCESS
        return f"Its process has sent no heartbeat for {silent}. {continued}"
    if operation.state == State.CANARY:
        return (
            "The other tasks are sent when all canaries have recovered. They are cancelled if one fails again, or has "
            f"no event until {text.absolute(runner.deadline(operation))}."
        )
    return ""


def _to_begin(operation: Operation, now: datetime) -> str:
    processes = count_running(now)
    if operation.not_before is not None and operation.not_before > now:
        begins = f"It starts at {text.absolute(operation.not_before)}."
        return begins if processes else f"{begins} {_NO_PROCESS}"
    if is_inline(operation) and operation.started_at is None and operation.created_at > now - STALE_AFTER:
        return "The request that created it runs it."
    return _for_a_place(operation, now, processes) if processes else _NO_PROCESS


def _for_a_place(operation: Operation, now: datetime, processes: int) -> str:
    is_gradual = bool(operation.canary or operation.rate)
    alike = Operation.objects.filter(background.GRADUAL if is_gradual else ~background.GRADUAL)
    at_once = background.GRADUAL_AT_ONCE if is_gradual else background.OTHERS_AT_ONCE
    alive = alike.filter(background.not_inline(), state__in=GOING, heartbeat_at__gt=now - STALE_AFTER)
    running = list(alive.order_by("pk").values_list("pk", flat=True)[: processes * at_once])
    if len(running) < processes * at_once:
        return "An operator process runs, and starts it within seconds."
    numbers = ", ".join(map(str, running))
    begins = plural(
        len(running),
        f"Operation {numbers} is running now: this one begins after it.",
        f"Operations {numbers} are running now: this one begins after the first of them to end.",
    )
    older = Q(created_at__lt=operation.created_at) | Q(created_at=operation.created_at, pk__lt=operation.pk)
    if ahead := alike.filter(older, background.not_inline(), may_start(now), state=State.PENDING).count():
        begins += f" {grouped(ahead)} older {plural(ahead, 'operation begins', 'operations begin')} before it."
    return begins


def canary_note(operation: Operation) -> str:
    """Return how many canaries there are, and how long their events are waited for."""
    waits = text.duration(runner.timeout(operation) * 1000)
    return f"{grouped(operation.canary)}; their events are waited for up to {waits}, then the others are cancelled"


def remaining_time(operation: Operation, now: datetime) -> str:
    """Return how long the remaining tasks take; empty where it is not known."""
    left = time_left(operation, now)
    if left is None:
        return ""
    how_long = text.duration(max(1_000, round(left.total_seconds() * 1000)))
    if operation.state == State.RUNNING:
        return f"About {how_long} left, until {text.absolute(now + left)}."
    return f"The remaining tasks take about {how_long} at this rate."
