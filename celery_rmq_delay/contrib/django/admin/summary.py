"""The summary above each list: counts with links, a chart of the last 24 hours, broker and collector state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.safestring import SafeString

from ..conf import conf
from ..models import CollectorStatus, ExhaustedTask, ParkedTask, TaskState
from ..queries import Capped, Collectors, Tiles, collectors, grouped, last_hours, plural, tiles
from ..services.counts import BrokerCounts, broker_counts, forget
from . import text
from .base import ReadOnlyAdmin, with_query
from .charts.hours import chart


@dataclass(frozen=True)
class Tile:
    """One figure; ``url`` leads to the tasks that it counts."""

    label: str
    value: str | SafeString
    url: str | None = None
    tone: str = ""


#: The query parameter that makes a list count the broker's messages again.
RECOUNT = "recount"


class SummarizedAdmin(ReadOnlyAdmin):
    """A list below the summary."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list below the summary."""
        more: dict[str, Any] = {}
        if request.method == "GET" and self.has_view_permission(request):
            if RECOUNT in request.GET:
                forget()
                return HttpResponseRedirect(_without_recount(request))
            more = {"summary": summary(self, request)}
        return super().changelist_view(request, {**more, **(extra_context or {})})


def _without_recount(request: HttpRequest) -> str:
    query = request.GET.copy()
    del query[RECOUNT]
    return with_query(request.path, query.urlencode())


def summary(admin: ReadOnlyAdmin, request: HttpRequest) -> dict[str, Any]:
    """Return the context of the template ``summary.html``."""
    now = timezone.now()
    hours = last_hours(now)
    found = tiles(conf().count_cap, now)
    collecting = collectors(now)
    live = broker_counts()
    return {
        "tiles": list(_tiles(admin, request, found)),
        "chart": chart(hours),
        "notes": _notes(collecting),
        "broker_note": _broker_note(live),
        "recount_url": f"?{_with_recount(request)}",
        "live": list(_live(live, found, collecting)),
        "collectors_url": admin.page_url(request, CollectorStatus, "changelist"),
        "now": now,
    }


def _with_recount(request: HttpRequest) -> str:
    query = request.GET.copy()
    query[RECOUNT] = "1"
    return query.urlencode()


def _tiles(admin: ReadOnlyAdmin, request: HttpRequest, found: Tiles) -> Iterator[Tile]:
    """Yield the figures; each list shows exactly the tasks that its figure counts."""
    parked = admin.page_url(request, ParkedTask, "changelist")
    exhausted = admin.page_url(request, ExhaustedTask, "changelist")

    def where(url: str | None, query: str) -> str | None:
        return url + query if url else None

    def bad(count: Capped) -> str:
        return "bad" if count.number else ""

    yield Tile("Parked", str(found.parked), parked)
    yield Tile("Due in 5 min", str(found.due_soon), where(parked, "?due=soon"))
    yield Tile("Overdue", str(found.overdue), where(parked, "?overdue=1"), bad(found.overdue))
    yield Tile("Exhausted, open", str(found.exhausted), exhausted, bad(found.exhausted))
    yield Tile("Open, exhausted in 24 h", str(found.exhausted_lately), where(exhausted, "?window=24h"))
    if found.oldest is not None:
        url = admin.page_url(request, ExhaustedTask, "change", found.oldest.pk)
        yield Tile("Oldest open", text.moment(found.oldest.exhausted_at, timezone.now()), url)
    if found.unknown.number:
        url = where(exhausted, f"?state={TaskState.UNKNOWN}")
        yield Tile("Outcome unknown", str(found.unknown), url, "bad")


def _broker_note(live: BrokerCounts) -> str:
    """Return the warning that the broker does not answer, empty if it does."""
    if live.ok or live.is_pending:
        return ""
    error = text.plain(live.error, 300).rstrip(".")
    note = f"The broker does not answer, so nothing can be requeued now: {error}"
    since = f"Its messages were last counted at {text.absolute(live.counted_at or live.at)}."
    return f"{note}. {since}" if live.counted_at else f"{note}."


def _live(live: BrokerCounts, found: Tiles, collecting: Collectors) -> Iterator[str]:
    """Yield the counts of the broker's queues beside those of the tables, and how far behind the tables are."""
    if live.is_pending:
        yield "The broker's messages are being counted."
    if live.ok:
        yield f"Delay queues hold {grouped(live.parked)}, the table holds {found.parked}."
        exhausted, events = live.exhausted or 0, live.events or 0
        yield (
            f"Waiting for the collector: {grouped(exhausted)} exhausted {plural(exhausted, 'message', 'messages')}, "
            f"{grouped(events)} {plural(events, 'event', 'events')}."
        )
    if running := collecting.running:
        run = plural(running, "collector runs", "collectors run")
        yield f"{running} {run}, {text.duration(collecting.lag_ms)} behind."


def _difference(collecting: Collectors) -> list[str]:
    """Return the warning that delay queues and table have differed for a while."""
    if collecting.differs_since is None:
        return []
    number = abs(collecting.differs_by)
    count, since = grouped(number), text.absolute(collecting.differs_since)
    if collecting.differs_by > 0:
        return [
            f"Since {since} the delay queues hold {count} {plural(number, 'task', 'tasks')} that the table does not "
            f"have: events were lost, or {plural(number, 'its worker sends', 'their workers send')} none."
        ]
    return [
        f"Since {since} the table has {count} parked {plural(number, 'task that is', 'tasks that are')} in no delay "
        "queue: a queue was purged or deleted, or events were lost."
    ]


def _notes(collecting: Collectors) -> list[str]:
    """Return warnings about missing or old data."""
    if not collecting.known:
        return ["No collector is running, so these pages stay as they are: start “manage.py rmq_delay_collect”."]
    if not collecting.running:
        when = text.relative(collecting.last_heartbeat - timezone.now()) if collecting.last_heartbeat else ""
        return [f"No collector is running (last heartbeat {when}): these pages show old data."]
    return _difference(collecting)
