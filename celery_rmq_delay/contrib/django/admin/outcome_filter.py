"""The filter of tasks by their outcome in an operation: the selections that continue or undo an operation."""

from __future__ import annotations

import re
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import Operation, OperationItem
from .filters import OwnFilter
from .text import plain

Outcome = OperationItem.Outcome

#: Tasks that an operation has certainly not processed. Those with unknown outcome are left to a person.
REST = (Outcome.FAILED, Outcome.UNTRIED, Outcome.CANCELLED)
_VALUE = re.compile("([0-9]{1,18}):(rest|done)")


class OutcomeFilter(OwnFilter):
    """``12:rest`` are the tasks that operation 12 has not processed, ``12:done`` those that it changed last.

    Shown only while it is chosen, from the page of an operation.
    """

    title = gettext_lazy("outcome")
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the chosen value."""
        value = request.GET.get("outcome")
        return [] if value is None else [(value, in_words_of(value) or plain(value, 80))]

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any] | None:
        """Return the tasks of one operation with these outcomes."""
        operation, which = _parsed(value)
        if operation is None:
            return None
        outcomes = REST if which == "rest" else (Outcome.OK,)
        items = OperationItem.objects.filter(operation=operation, outcome__in=outcomes, record=OuterRef("pk"))
        last = Q(operation=operation) if which == "done" else Q()
        return queryset.filter(last, Exists(items))


def in_words_of(value: str) -> str:
    """Return a value of the filter as text; empty for an unknown one."""
    operation, which = _parsed(value)
    if operation is None:
        return ""
    text = _("not done by operation %(number)s") if which == "rest" else _("done by operation %(number)s")
    return text % {"number": operation}


def followed(request: HttpRequest) -> Operation | None:
    """Return the operation that the selection of a request continues."""
    operation, _which = _parsed(request.GET.get("outcome", ""))
    return None if operation is None else Operation.objects.filter(pk=operation).first()


def _parsed(value: str) -> tuple[int | None, str]:
    found = _VALUE.fullmatch(value)
    return (int(found[1]), found[2]) if found else (None, "")
