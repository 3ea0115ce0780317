"""The tasks of an operation on its page: the first of each outcome, or all of one outcome in pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.core.paginator import Page, Paginator
from django.http import HttpRequest
from django.utils.functional import cached_property

from ..models import Operation, OperationItem
from ..queries import grouped
from . import text
from .base import ReadOnlyAdmin

Outcome = OperationItem.Outcome

#: The order of the outcomes on the page: problems first.
ORDER = (
    Outcome.UNKNOWN, Outcome.FAILED, Outcome.UNTRIED, Outcome.SKIPPED, Outcome.PENDING, Outcome.OK, Outcome.CANCELLED,
)  # fmt: skip
#: Tasks of each outcome that the page lists first, and tasks of one page of an outcome.
SHOWN, PER_PAGE = 50, 200


class _Paginator(Paginator):  # type: ignore[type-arg] # Django 5.2 cannot be subscripted
    """Pages of rows whose number is known."""

    def __init__(self, rows: Any, count: int) -> None:
        super().__init__(rows, PER_PAGE)
        self._known = count

    @cached_property
    def count(self) -> int:
        """The number of rows, without a query."""
        return self._known


def item_groups(
    pages: ReadOnlyAdmin, request: HttpRequest, operation: Operation, outcomes: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """Yield the tasks by outcome; only those of the query's ``outcome`` where it has one, in pages."""
    chosen = request.GET.get("outcome", "")
    is_chosen = chosen in Outcome.values
    for outcome in (Outcome(chosen),) if is_chosen else ORDER:
        count = outcomes.get(outcome, 0)
        if not count and not is_chosen:
            continue
        found = OperationItem.objects.filter(operation=operation, outcome=outcome).select_related("record")
        items: Any = found.order_by("position")
        page = _Paginator(items, count).get_page(request.GET.get("page")) if is_chosen else None
        rows = [_row(pages, request, item) for item in (page if page is not None else items[:SHOWN])]
        yield {
            "badge": text.outcome_badge(outcome),
            "rows": rows,
            "count": grouped(count),
            "rest": 0 if is_chosen else count - len(rows),
            "all_url": f"?outcome={outcome}",
            "links": [] if page is None else list(_links(page, outcome)),
        }


def _row(pages: ReadOnlyAdmin, request: HttpRequest, item: OperationItem) -> dict[str, Any]:
    return {
        "url": pages.record_url(request, item.record),
        "task": text.hostile(item.record, 200),
        "is_canary": item.is_canary,
        "detail": text.hostile(item.detail, 255) if item.detail else "",
        "state": text.state_badge(item.record.state),
    }


def _links(page: Page[Any], outcome: str) -> Iterator[tuple[str, str]]:
    """Yield number and URL of each page to link; the URL of this page and of a gap is empty."""
    if page.paginator.num_pages > 1:
        for each in page.paginator.get_elided_page_range(page.number):
            is_link = isinstance(each, int) and each != page.number
            yield str(each), f"?outcome={outcome}&page={each}" if is_link else ""
