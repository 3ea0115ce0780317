"""The summary above each list: counts with links, a chart of the last 24 hours, broker and collector state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.safestring import SafeString

from ..conf import conf
from ..models import CollectorStatus, ExhaustedTask, ParkedTask, TaskState
from ..queries import Capped, Collectors, Tiles, collectors, grouped, last_hours, plural, tiles
from ..services.counts import BrokerCounts, broker_counts, forget
from . import text
from .base import ReadOnlyAdmin, with_query
from .charts import chart

#: The query parameter that makes a list count the broker's messages again.
RECOUNT = "recount"


class Tile(NamedTuple):
    """One figure; ``url`` leads to the tasks that it counts."""

    label: str
    value: str | SafeString
    url: str | None = None
    tone: str = ""


class SummarizedAdmin(ReadOnlyAdmin):
    """A list below the summary."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        more: dict[str, Any] = {}
        if request.method == "GET" and self.has_view_permission(request):
            if RECOUNT in request.GET:
                forget()
                query = request.GET.copy()
                del query[RECOUNT]
                return HttpResponseRedirect(with_query(request.path, query.urlencode()))
            more = {"summary": _summary(self, request)}
        return super().changelist_view(request, {**more, **(extra_context or {})})


def _summary(admin: ReadOnlyAdmin, request: HttpRequest) -> dict[str, Any]:
    """Return the context of the template ``summary.html``."""
    now = timezone.now()
    found, collecting, live = tiles(conf().count_cap, now), collectors(now), broker_counts()
    return {
        "tiles": list(_tiles(admin, request, found)),
        "chart": chart(last_hours(now)),
        "note": _note(collecting),
        "broker_note": _broker_note(live),
        "live": list(_live(live, found, collecting)),
        "collectors_url": admin.page_url(request, CollectorStatus, "changelist"),
    }


def _tiles(admin: ReadOnlyAdmin, request: HttpRequest, found: Tiles) -> Iterator[Tile]:
    """Yield the figures; each list shows exactly the tasks that its figure counts."""
    parked = admin.page_url(request, ParkedTask, "changelist")
    exhausted = admin.page_url(request, ExhaustedTask, "changelist")

    def tile(label: str, count: Capped, url: str | None, query: str = "", tone: str = "") -> Tile:
        return Tile(label, str(count), url and url + query, tone if count.number else "")

    yield tile("Parked", found.parked, parked)
    yield tile("Due in 5 min", found.due_soon, parked, "?due=soon")
    yield tile("Overdue", found.overdue, parked, "?overdue=1", "bad")
    yield tile("Exhausted, open", found.exhausted, exhausted, tone="bad")
    yield tile("Open, exhausted in 24 h", found.exhausted_lately, exhausted, "?window=24h")
    if found.oldest is not None:
        url = admin.page_url(request, ExhaustedTask, "change", found.oldest.pk)
        yield Tile("Oldest open", text.moment(found.oldest.exhausted_at), url)
    if found.unknown.number:
        yield tile("Outcome unknown", found.unknown, exhausted, f"?state={TaskState.UNKNOWN}", "bad")


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


def _note(collecting: Collectors) -> str:
    """Return the warning about missing, old or different data; empty if there is none."""
    if not collecting.known:
        return "No collector is running, so these pages stay as they are: start “manage.py rmq_delay_collect”."
    if not collecting.running:
        when = text.relative(collecting.last_heartbeat - timezone.now()) if collecting.last_heartbeat else ""
        return f"No collector is running (last heartbeat {when}): these pages show old data."
    if collecting.differs_since is None:
        return ""
    number = abs(collecting.differs_by)
    count, since = grouped(number), text.absolute(collecting.differs_since)
    if collecting.differs_by > 0:
        return (
            f"Since {since} the delay queues hold {count} {plural(number, 'task', 'tasks')} that the table does not "
            f"have: events were lost, or {plural(number, 'its worker sends', 'their workers send')} none."
        )
    return (
        f"Since {since} the table has {count} parked {plural(number, 'task that is', 'tasks that are')} in no delay "
        "queue: a queue was purged or deleted, or events were lost."
    )
