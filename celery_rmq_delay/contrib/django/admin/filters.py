"""The filters of the lists: choices from small tables, and conditions that use an index."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from ..models import LookupValue, TaskState
from ..queries import MAX_CHOICES, due_soon, lookup_values, overdue
from .base import EXHAUSTED_STATES
from .changelist import Reads, named
from .text import plain

_LOOKUPS = "_rmq_delay_lookups"


def number_of(value: str | None) -> int | None:
    """Return a number of at most nine digits; None for anything else."""
    return int(value) if value and value.isascii() and value.isdigit() and len(value) < 10 else None


class OwnFilter(admin.SimpleListFilter):
    """A filter that refuses unknown values: if it ignored them, an action would affect more rows."""

    template = "admin/rmq_delay/filter.html"
    #: Parameters beside ``parameter_name``.
    more_parameters: tuple[str, ...] = ()
    reads = Reads.INDEX

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the rows of the chosen value; all rows if none is chosen."""
        chosen = self.value()
        if chosen is None:
            return queryset
        kept = None if "\0" in chosen else self.chosen(queryset, chosen)
        if kept is None:
            raise IncorrectLookupParameters(named(str(self.parameter_name), chosen))
        return kept

    def has_output(self) -> bool:
        """Return whether there are choices, or one is chosen: Django ignores a filter without output."""
        return self.value() is not None or super().has_output()

    @property
    def in_words(self) -> str:
        """The filter and its chosen value as text; empty if none is chosen."""
        value = self.value()
        if value is None:
            return ""
        known = {str(key): label for key, label in self.lookup_choices}
        return plain(f"{self.title}: {known.get(value, value)}", 120)

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the rows of a value; None if the value is unknown."""
        raise NotImplementedError


class StateFilter(OwnFilter):
    """One of the states of the list; by default the first, which the list is named after.

    The tasks of an operation are shown in all states of the list: the operation has changed them.
    """

    title = "state"
    parameter_name = "state"
    states: tuple[TaskState, ...] = ()

    @property
    def default(self) -> tuple[TaskState, ...]:
        """The states while none is chosen."""
        return self.states if "operation" in self.request.GET else self.states[:1]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the states."""
        return [(state.value, state.label) for state in self.states]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the tasks of the chosen state, or of the default."""
        return queryset.filter(state__in=self.default) if self.value() is None else super().queryset(request, queryset)

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the tasks of one state."""
        return queryset.filter(state=value) if value in self.states else None

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Yield the states without "All", for which there is no index."""
        chosen = (self.value(),) if self.value() else self.default
        for state in self.states:
            yield {
                "selected": (state,) == chosen,
                "query_string": changelist.get_query_string({self.parameter_name: state.value}),
                "display": state.label,
            }


class ParkedStates(StateFilter):
    """The states of the list of parked tasks."""

    states = (TaskState.PARKED, TaskState.RUNNING)


class ExhaustedStates(StateFilter):
    """The states of the list of exhausted tasks."""

    states = EXHAUSTED_STATES


class AnyState(OwnFilter):
    """Any state, or one."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return all states."""
        return list(TaskState.choices)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the tasks of the chosen state, or name all states: the indexes begin with the state."""
        if self.value() is None:
            return queryset.filter(state__in=TaskState.values)
        return super().queryset(request, queryset)

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the tasks of one state."""
        return queryset.filter(state=value) if value in TaskState.values else None


class SeenFilter(OwnFilter):
    """A queue, task or error class that was recorded; read from a small table, once for all filters of a page."""

    kind: LookupValue.Kind
    field = ""
    #: Whether there may be more values than choices, so that a value can be typed.
    is_long = False
    #: The other parameters of the page, which a typed value keeps.
    others: tuple[tuple[str, str], ...] = ()

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the recorded values, and the chosen one."""
        found = getattr(request, _LOOKUPS, None)
        if found is None:
            found = lookup_values()
            setattr(request, _LOOKUPS, found)
        values = list(found[self.kind])
        self.is_long = len(values) >= MAX_CHOICES
        chosen = request.GET.get(self.parameter_name or "")
        if chosen and chosen not in values:
            values.insert(0, chosen)
        return [(value, plain(value, 80)) for value in values]

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the tasks with one value."""
        return queryset.filter(**{self.field: value})

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Yield the choices, as Django does."""
        given = changelist.filter_params.items()
        self.others = tuple((name, each) for name, values in given if name != self.parameter_name for each in values)
        return super().choices(changelist)


class QueueFilter(SeenFilter):
    """By origin queue."""

    title, parameter_name, kind, field = "queue", "queue", LookupValue.Kind.QUEUE, "queue"


class TaskFilter(SeenFilter):
    """By task."""

    title, parameter_name, kind, field = "task", "task", LookupValue.Kind.TASK, "name"


class ErrorFilter(SeenFilter):
    """By class of the last error."""

    title, parameter_name, kind, field = "error", "error", LookupValue.Kind.ERROR, "exception_type"


class WorkerFilter(SeenFilter):
    """By the worker of the last attempt."""

    title, parameter_name, kind, field = "worker", "worker", LookupValue.Kind.WORKER, "worker"


class WindowFilter(OwnFilter):
    """The last hours or days."""

    parameter_name = "window"
    field = ""
    windows = {
        "1h": (timedelta(hours=1), "Last hour"),
        "24h": (timedelta(hours=24), "Last 24 hours"),
        "7d": (timedelta(days=7), "Last 7 days"),
        "30d": (timedelta(days=30), "Last 30 days"),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the windows."""
        return [(name, label) for name, (_length, label) in self.windows.items()]

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the tasks of one window."""
        found = self.windows.get(value)
        return queryset.filter(**{f"{self.field}__gte": timezone.now() - found[0]}) if found else None


class ParkedWindow(WindowFilter):
    """By when it was parked."""

    title, field = "parked", "parked_at"
    reads = Reads.ROWS


class ExhaustedWindow(WindowFilter):
    """By when it was exhausted."""

    title, field = "exhausted", "exhausted_at"


class ChangedWindow(WindowFilter):
    """By when its state changed."""

    title, field = "changed", "changed_at"


class AttemptsFilter(OwnFilter):
    """A minimum number of attempts; the URL accepts any number."""

    title = "attempts"
    parameter_name = "attempts"
    offered = (1, 2, 3, 5, 10)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return some numbers, and the chosen one."""
        numbers = {*self.offered, number_of(request.GET.get("attempts")) or 1}
        return [(str(number), f"{number} or more") for number in sorted(numbers)]

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the tasks with at least that many attempts; the first attempt is number 0."""
        number = number_of(value)
        return queryset.filter(attempt__gte=number - 1) if number else None


class OverdueFilter(OwnFilter):
    """Overdue tasks: due, and without an event since."""

    title = "overdue"
    parameter_name = "overdue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the one choice."""
        return [("1", "Overdue only")]

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the tasks that are overdue."""
        return queryset.filter(overdue(timezone.now())) if value == "1" else None


class DueFilter(OwnFilter):
    """Tasks that are due soon."""

    title = "due"
    parameter_name = "due"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the one choice."""
        return [("soon", "In 5 minutes")]

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the tasks that are due within 5 minutes, and not overdue."""
        return queryset.filter(due_soon(timezone.now())) if value == "soon" else None


class RequeuedFilter(OwnFilter):
    """Requeued before, or never."""

    title = "requeued before"
    parameter_name = "requeued"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return both choices."""
        return [("1", "Yes"), ("0", "No")]

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the tasks that were requeued, or those that never were."""
        if value == "1":
            return queryset.filter(generation__gt=0)
        return queryset.filter(generation=0) if value == "0" else None
