"""Filters that only links set: the tasks of a failure group, and those that an operation selected."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.http import HttpRequest

from ..models import FailureGroup, Operation, OperationItem
from ..queries import selected
from .changelist import Reads, named
from .filters import OwnFilter, number_of
from .text import plain

Outcome = OperationItem.Outcome

#: Tasks that an operation has certainly not processed. Those with unknown outcome are left to a person.
REST = (Outcome.FAILED, Outcome.UNTRIED, Outcome.CANCELLED)
#: Selections that continue or undo an operation: values of the parameter ``outcome`` beside those of `Outcome`.
_SELECTIONS = {"rest": "not done", "done": "done, not changed since"}


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
        """Return the tasks of the groups; None if one was deleted."""
        return queryset.filter(failure_group__in=self.groups) if self.groups else None


class OperationFilter(OwnFilter):
    """The tasks that an operation selected; with ``outcome``, those with one outcome. Has no choices, only a chip."""

    title = "operation"
    parameter_name = "operation"
    more_parameters = ("outcome",)
    reads = Reads.ALL
    template = "admin/rmq_delay/no_choices.html"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        self.outcome: str | None = params.pop("outcome", [None])[-1]

    def expected_parameters(self) -> list[str | None]:
        """Return both parameters."""
        return ["operation", "outcome"]

    def has_output(self) -> bool:
        """Return whether one of the parameters is given."""
        return self.outcome is not None or super().has_output()

    @property
    def in_words(self) -> str:
        """The operation and the outcome as text; empty if none is chosen."""
        if self.value() is None:
            return ""
        words = f"Operation {self.value()}"
        return plain(f"{words}: {in_words_of(self.outcome)}" if self.outcome else words, 120)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return no choices."""
        return []

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
