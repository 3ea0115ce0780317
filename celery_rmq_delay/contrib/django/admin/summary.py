"""The summary above each list: tiles, a chart of the last 24 hours, broker and collector state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..conf import conf
from ..models import CollectorStatus, ExhaustedTask, ParkedTask, TaskState
from ..queries import Capped, Collectors, Hour, Tiles, collectors, grouped, last_hours, tiles
from ..services.counts import BrokerCounts, broker_counts
from . import text
from .base import ReadOnlyAdmin
from .charts.hours import chart


@dataclass(frozen=True)
class Tile:
    """One figure; ``url`` leads to the list that it counts."""

    label: str
    value: str | SafeString
    url: str | None = None
    tone: str = ""


def summary(admin: ReadOnlyAdmin, request: HttpRequest) -> dict[str, Any]:
    """Return the context of the template ``summary.html``."""
    now = timezone.now()
    hours = last_hours(now)
    found = tiles(conf().count_cap, now)
    collecting = collectors(now)
    live = broker_counts()
    return {
        "tiles": list(_tiles(admin, request, found, hours)),
        "chart": chart(hours),
        "notes": [*_broker_notes(live), *_notes(collecting)],
        "live": list(_live(live, found, collecting)),
        "collectors_url": admin.page_url(request, CollectorStatus, "changelist"),
        "now": now,
    }


def _tiles(admin: ReadOnlyAdmin, request: HttpRequest, found: Tiles, hours: Sequence[Hour]) -> list[Tile]:
    parked = admin.page_url(request, ParkedTask, "changelist")
    exhausted = admin.page_url(request, ExhaustedTask, "changelist")

    def where(url: str | None, query: str = "") -> str | None:
        return url + query if url else None

    def bad(count: Capped) -> str:
        return "bad" if count.number else ""

    shown = [
        Tile(_("Parked"), str(found.parked), parked),
        Tile(_("Due in 5 min"), str(found.due_soon), parked),
        Tile(_("Overdue"), str(found.overdue), where(parked, "?overdue=1"), bad(found.overdue)),
        Tile(_("Exhausted in 24 h"), grouped(sum(hour.exhausted for hour in hours)), where(exhausted, "?window=24h")),
        Tile(_("Exhausted, open"), str(found.exhausted), exhausted, bad(found.exhausted)),
        Tile(_("Oldest open"), text.moment(found.oldest, timezone.now())),
    ]
    if found.unknown.number:
        url = where(exhausted, f"?state={TaskState.UNKNOWN}")
        shown.append(Tile(_("Outcome unknown"), str(found.unknown), url, "bad"))
    return shown


def _broker_notes(live: BrokerCounts) -> list[str]:
    if live.ok:
        return []
    error = text.plain(live.error, 300)
    return [_("The broker does not answer, so nothing can be requeued now: %(error)s") % {"error": error}]


def _live(live: BrokerCounts, found: Tiles, collecting: Collectors) -> Iterator[str]:
    """Yield the counts of the broker's queues beside those of the tables, and how far behind the tables are."""
    if live.ok:
        numbers = {"queues": grouped(live.parked), "table": found.parked}
        yield _("Delay queues hold %(queues)s, the table holds %(table)s.") % numbers
        waiting = live.exhausted or 0
        exhausted = ngettext("%(count)s exhausted message", "%(count)s exhausted messages", waiting)
        events = ngettext("%(count)s event", "%(count)s events", live.events or 0)
        yield _("Waiting for the collector: %(exhausted)s, %(events)s.") % {
            "exhausted": exhausted % {"count": grouped(waiting)},
            "events": events % {"count": grouped(live.events or 0)},
        }
    if collecting.running:
        count = ngettext("%(count)s collector runs", "%(count)s collectors run", collecting.running)
        yield _("%(collectors)s, %(lag)s behind.") % {
            "collectors": count % {"count": collecting.running},
            "lag": text.duration(collecting.lag_ms),
        }


def _difference(collecting: Collectors) -> list[str]:
    """Return the warning that delay queues and table have differed for a while."""
    if collecting.differs_since is None:
        return []
    number = abs(collecting.differs_by)
    words = {"count": grouped(number), "since": text.absolute(collecting.differs_since)}
    if collecting.differs_by > 0:
        return [
            ngettext(
                "Since %(since)s the delay queues hold %(count)s task that the table does not have: events were lost, "
                "or its worker sends none.",
                "Since %(since)s the delay queues hold %(count)s tasks that the table does not have: events were lost, "
                "or their workers send none.",
                number,
            )
            % words
        ]
    return [
        ngettext(
            "Since %(since)s the table has %(count)s parked task that is in no delay queue: a queue was purged or "
            "deleted, or events were lost.",
            "Since %(since)s the table has %(count)s parked tasks that are in no delay queue: a queue was purged or "
            "deleted, or events were lost.",
            number,
        )
        % words
    ]


def _notes(collecting: Collectors) -> list[str]:
    """Return warnings about missing or old data."""
    if not collecting.known:
        return [_("No collector has ever run, so these pages stay empty: start “manage.py rmq_delay_collect”.")]
    if not collecting.running:
        when = text.relative(collecting.last_heartbeat - timezone.now()) if collecting.last_heartbeat else ""
        return [_("No collector is running (last heartbeat %(when)s): these pages show old data.") % {"when": when}]
    return _difference(collecting)
