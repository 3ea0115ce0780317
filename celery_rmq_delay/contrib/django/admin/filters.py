"""The filters of the lists: choices from small tables, and conditions that use an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from ..models import FailureGroup, Operation, OperationItem, TaskState
from ..queries import MAX_CHOICES, due_soon, lookup_values, overdue, selected
from .base import EXHAUSTED_STATES, PARKED_STATES
from .changelist import Reads, named
from .text import plain

Outcome = OperationItem.Outcome
#: The choices of a filter: label and condition by value; a condition that depends on the time is a function.
Options = Mapping[str, tuple[str, Q | Callable[[], Q]]]

#: Tasks that an operation has certainly not processed. Those with unknown outcome are left to a person.
REST = (Outcome.FAILED, Outcome.UNTRIED, Outcome.CANCELLED)
#: Selections that continue or undo an operation: values of the parameter ``outcome`` beside those of `Outcome`.
_SELECTIONS = {"rest": "not done", "done": "done, not changed since"}
_LOOKUPS = "_rmq_delay_lookups"


def number_of(value: str | None) -> int | None:
    """Return a number of at most nine digits; None for anything else."""
    return int(value) if value and value.isascii() and value.isdigit() and len(value) < 10 else None


def options_of(field: str, choices: Any) -> Options:
    """Return the options for the choices of a field."""
    return {value: (label, Q(**{field: value})) for value, label in choices}


class OwnFilter(admin.SimpleListFilter):
    """A filter that refuses unknown values: if it ignored them, an action would affect more rows."""

    template = "admin/rmq_delay/filter.html"
    #: Parameters beside ``parameter_name``.
    more_parameters: tuple[str, ...] = ()
    reads = Reads.INDEX
    options: Options = {}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, label) for value, (label, _condition) in self.options.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        if chosen is None:
            return queryset.filter(self.unchosen())
        kept = None if "\0" in chosen else self.chosen(queryset, chosen)
        if kept is None:
            raise IncorrectLookupParameters(named(str(self.parameter_name), chosen))
        return kept

    def unchosen(self) -> Q:
        """Return the condition while no value is chosen."""
        return Q()

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the rows of a value; None if the value is unknown."""
        if value not in self.options:
            return None
        _label, condition = self.options[value]
        return queryset.filter(condition() if callable(condition) else condition)

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


class AnyState(OwnFilter):
    """Any state, or one."""

    title = parameter_name = "state"
    options = options_of("state", TaskState.choices)

    def unchosen(self) -> Q:
        """Name all states: the indexes begin with the state."""
        return Q(state__in=TaskState.values)


class StateFilter(OwnFilter):
    """One of the states of the list; by default the first, which the list is named after.

    The tasks of an operation are shown in all states of the list: the operation has changed them.
    """

    title = parameter_name = "state"

    def unchosen(self) -> Q:
        return Q(state__in=self._default())

    def _default(self) -> list[str]:
        return [*self.options] if "operation" in self.request.GET else [*self.options][:1]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Yield the states without "All", for which there is no index."""
        chosen = [self.value()] if self.value() else self._default()
        for state, label in self.lookup_choices:
            query = changelist.get_query_string({self.parameter_name: state})
            yield {"selected": [state] == chosen, "query_string": query, "display": label}


class ParkedStates(StateFilter):
    """The states of the list of parked tasks."""

    options = options_of("state", [(state.value, state.label) for state in PARKED_STATES])


class ExhaustedStates(StateFilter):
    """The states of the list of exhausted tasks."""

    options = options_of("state", [(state.value, state.label) for state in EXHAUSTED_STATES])


class SeenFilter(OwnFilter):
    """A value that was recorded; read from a small table, once for all filters of a page."""

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
        values = list(found[str(self.parameter_name)])
        self.is_long = len(values) >= MAX_CHOICES
        chosen = request.GET.get(self.parameter_name or "")
        if chosen and chosen not in values:
            values.insert(0, chosen)
        return [(value, plain(value, 80)) for value in values]

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        return queryset.filter(**{self.field: value})

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Yield the choices, as Django does."""
        given = changelist.filter_params.items()
        self.others = tuple((name, each) for name, values in given if name != self.parameter_name for each in values)
        return super().choices(changelist)


def _seen(what: str, field: str) -> type[SeenFilter]:
    return type("SeenFilter", (SeenFilter,), {"title": what, "parameter_name": what, "field": field})


SEEN = (_seen("queue", "queue"), _seen("task", "name"), _seen("error", "exception_type"), _seen("worker", "worker"))


def _since(field: str, length: timedelta) -> Callable[[], Q]:
    return lambda: Q(**{f"{field}__gte": timezone.now() - length})


def window(title: str, field: str, reads: Reads = Reads.INDEX) -> type[OwnFilter]:
    """Return a filter by the last hours or days of a field."""
    options = {
        "1h": ("Last hour", _since(field, timedelta(hours=1))),
        "24h": ("Last 24 hours", _since(field, timedelta(hours=24))),
        "7d": ("Last 7 days", _since(field, timedelta(days=7))),
        "30d": ("Last 30 days", _since(field, timedelta(days=30))),
    }
    members = {"title": title, "parameter_name": "window", "reads": reads, "options": options}
    return type("WindowFilter", (OwnFilter,), members)


class AttemptsFilter(OwnFilter):
    """A minimum number of attempts; the URL accepts any number."""

    title = parameter_name = "attempts"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return some numbers, and the chosen one."""
        numbers = {1, 2, 3, 5, 10, number_of(request.GET.get("attempts")) or 1}
        return [(str(number), f"{number} or more") for number in sorted(numbers)]

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        number = number_of(value)
        return queryset.filter(attempt__gte=number - 1) if number else None  # the first attempt is number 0


class OverdueFilter(OwnFilter):
    """Overdue tasks: due, and without an event since."""

    title = parameter_name = "overdue"
    options = {"1": ("Overdue only", lambda: overdue(timezone.now()))}


class DueFilter(OwnFilter):
    """Tasks that are due soon, and not overdue."""

    title = parameter_name = "due"
    options = {"soon": ("In 5 minutes", lambda: due_soon(timezone.now()))}


class RequeuedFilter(OwnFilter):
    """Requeued before, or never."""

    title = "requeued before"
    parameter_name = "requeued"
    options = {"1": ("Yes", Q(generation__gt=0)), "0": ("No", Q(generation=0))}


class GroupFilter(OwnFilter):
    """By failure group, or several with commas; shown only while one is chosen, from the page of the groups."""

    title = "failure group"
    parameter_name = "group"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the chosen groups as one choice; none if one of them does not exist."""
        value = request.GET.get("group", "")
        numbers = {number_of(each) or 0 for each in value.split(",")}
        found = list(FailureGroup.objects.filter(pk__in=numbers))
        self.groups = found if len(found) == len(numbers) else []
        if not self.groups:
            return []
        label = f"{len(found)} groups" if len(found) > 1 else found[0]
        return [(value, plain(label, 80))]

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        return queryset.filter(failure_group__in=self.groups) if self.groups else None


class OperationFilter(OwnFilter):
    """The tasks that an operation selected; with ``outcome``, those with one outcome. Has no choices, only a chip."""

    title = parameter_name = "operation"
    more_parameters = ("outcome",)
    reads = Reads.ALL
    template = "admin/rmq_delay/no_choices.html"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        self.outcome: str | None = params.pop("outcome", [None])[-1]

    def expected_parameters(self) -> list[str | None]:
        return ["operation", "outcome"]

    def has_output(self) -> bool:
        return self.outcome is not None or super().has_output()

    @property
    def in_words(self) -> str:
        """The operation and the outcome as text; empty if none is chosen."""
        if self.value() is None:
            return ""
        words = f"Operation {self.value()}"
        return plain(f"{words}: {in_words_of(self.outcome)}" if self.outcome else words, 120)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the tasks of the operation. An outcome without an operation is refused, and so is an unknown one."""
        unknown = self.outcome not in (None, *Outcome.values, *_SELECTIONS)
        if self.outcome is not None and (unknown or self.value() is None):
            raise IncorrectLookupParameters(named("outcome", self.outcome))
        return super().queryset(request, queryset)

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the tasks of an operation; None if it was deleted."""
        number = number_of(value)
        if number is None or not Operation.objects.filter(pk=number).exists():
            return None
        items = OperationItem.objects.filter(operation=number)
        if self.outcome == "rest":
            items = items.filter(outcome__in=REST)
        elif self.outcome == "done":
            items = items.filter(outcome=Outcome.OK, record__operation=number)
        elif self.outcome is not None:
            items = items.filter(outcome=self.outcome)
        return selected(queryset, items.values("record"))


#: The last filters of all lists of tasks.
COMMON = (AttemptsFilter, RequeuedFilter, GroupFilter, OperationFilter)


def in_words_of(outcome: str) -> str:
    """Return a value of the parameter ``outcome`` as text."""
    if outcome in Outcome.values:
        return str(Outcome(outcome).label)
    return str(_SELECTIONS.get(outcome, plain(outcome, 80)))


def followed(request: HttpRequest) -> Operation | None:
    """Return the operation that the selection of a request continues or undoes."""
    if request.GET.get("outcome") not in _SELECTIONS:
        return None
    return Operation.objects.filter(pk=number_of(request.GET.get("operation")) or 0).first()
