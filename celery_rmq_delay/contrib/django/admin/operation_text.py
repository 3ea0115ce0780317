"""The details of an operation as text."""

from __future__ import annotations

import json
from collections.abc import Iterator

from django.apps import apps

from ..models import Operation, TaskState
from .filters import (
    AttemptsFilter,
    DueFilter,
    ErrorFilter,
    OverdueFilter,
    QueueFilter,
    RequeuedFilter,
    StateFilter,
    TaskFilter,
    WorkerFilter,
)
from .link_filters import GroupFilter, OperationFilter, in_words_of

_FILTERS = (
    StateFilter, QueueFilter, TaskFilter, ErrorFilter, WorkerFilter, AttemptsFilter, DueFilter, OverdueFilter,
    RequeuedFilter, GroupFilter, OperationFilter,
)  # fmt: skip
#: The titles of the lists' query parameters.
_TITLES = {each.parameter_name: each.title for each in _FILTERS} | {
    "q": "search", "outcome": "outcome",
}  # fmt: skip


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
