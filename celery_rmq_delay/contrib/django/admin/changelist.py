"""The rows of a list: a filter that cannot be applied selects no rows, instead of all."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, SEARCH_VAR, ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest

from ..conf import conf
from ..queries import counted_page, has_plain_order, page_ids
from .text import plain

#: The most filters that an index of the tasks has, beside their state.
MOST_INDEXED = 2


class Reads(Enum):
    """What a database reads to find the rows of a filter."""

    #: An index, in which they are counted, and in many cases sorted.
    INDEX = auto()
    #: The rows, so that they are counted and sorted in one query, up to the cap of counts.
    ROWS = auto()
    #: All of the rows even for one page, as they are in no index's order.
    ALL = auto()


class RefusedFilterError(Exception):
    """An action was sent to a list whose filter cannot be applied."""


class SafeChangeList(ChangeList):
    """Django's list, except that a filter or a page that does not exist never leads to the unfiltered list.

    Django redirects to that list, where "Select all" and an action would affect every row.
    """

    #: The parameter that cannot be applied; empty if all can.
    refused = ""

    def get_filters(self, request: HttpRequest) -> Any:
        """Return Django's filters. Raises `IncorrectLookupParameters` for a parameter that no filter has."""
        for name, values in self.get_filters_params().items():
            if not self.model_admin.lookup_allowed(name, values[-1], request):
                raise IncorrectLookupParameters(named(name, values[-1]))
        if ORDER_VAR in self.params and not self.sortable_by:
            raise IncorrectLookupParameters(named(ORDER_VAR, request.GET[ORDER_VAR]))
        if "\0" in (term := request.GET.get(SEARCH_VAR, "")):
            raise IncorrectLookupParameters(named(SEARCH_VAR, term))
        return super().get_filters(request)

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Return the rows; none if a filter cannot be applied. Raises `RefusedFilterError` then for an action."""
        try:
            found: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        except IncorrectLookupParameters as error:
            self.refused = plain(error, 120)
            if request.method == "POST":
                raise RefusedFilterError(self.refused) from error
            # Links and the search form of the page start without filters.
            self.params, self.filter_params, self.clear_all_filters_qs = {}, {}, "?"
            return self.root_queryset.none()
        return found

    def get_results(self, request: HttpRequest) -> None:
        """Find the rows of the page; of the first page where the list no longer has the requested one."""
        rows, size = self.queryset, self.list_per_page
        pages: Any = self.model_admin.get_paginator(request, rows, size)
        is_plain, first = has_plain_order(rows), max(0, self.page_num - 1) * size
        reads = self._reads() if is_plain else Reads.INDEX
        ids: Any = None
        if reads is not Reads.INDEX:
            known = counted_page(rows, conf().count_cap, first, size, to_the_end=reads is Reads.ALL)
            if known is not None:
                pages.capped, ids = known
        if not 1 <= self.page_num <= pages.num_pages:
            self.page_num, first, ids = 1, 0, None
        if is_plain:
            if ids is None:
                ids = page_ids(rows, first, size, is_more=pages.capped.is_more)
            self.result_list = self.root_queryset.filter(pk__in=ids).order_by(*rows.query.order_by)
        else:
            self.result_list = rows[first : first + size]
        self.paginator, self.result_count, self.multi_page = pages, pages.count, pages.num_pages > 1
        # What else Django's templates read: these lists are never shown in full, or counted without their filters.
        self.can_show_all = self.show_full_result_count = False
        self.full_result_count = None
        self.show_admin_actions = True

    def _reads(self) -> Reads:
        """Return what has to be read to count the rows that are filtered."""
        if self.refused:
            return Reads.INDEX
        filters: Any = self.filter_specs
        chosen = self.get_filters_params()
        reads = {getattr(each, "reads", Reads.ROWS) for each in filters if set(each.expected_parameters()) & {*chosen}}
        if Reads.ALL in reads:
            return Reads.ALL
        return Reads.ROWS if Reads.ROWS in reads or len(chosen) > MOST_INDEXED else Reads.INDEX


def named(name: str, value: str) -> str:
    """Return a parameter and its value for a message."""
    return f"{name[:60]}={value[:40]!r}"
